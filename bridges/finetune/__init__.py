"""The parts of `dew finetune`: its settings, its sums, its optimizer, its folder."""
