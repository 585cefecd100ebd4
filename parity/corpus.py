"""The text that parity's checks tokenize and score: plain prose, then what tokenizers trip over."""

from __future__ import annotations

TEXT = """\
The harbour master kept two ledgers. In the first he wrote what the ships said they carried, and
in the second what the cranes had weighed. Most evenings the two agreed to within a barrel or so,
and then he closed both, lit the lamp over the door and walked home along the wall. On the evenings
when they did not agree he stayed, and added the columns again from the bottom up, because a sum
that comes out the same in both directions is harder to argue with.

"You could simply believe them," said the pilot, who had come in to dry his coat.

"I do believe them," the harbour master answered. "I believe them and I weigh the cargo. Nobody
has ever been insulted by a pair of scales." He turned the page. There were 1,284 sacks of barley,
37.5 tonnes of slate and one piano, declared as furniture. The piano had been weighed three times.

It rained until morning. By then the tide had carried the barge round on her rope, so that she
pointed at the town as if she meant to enter it, and the boys who ought to have been at school
stood along the rail and gave her orders. None of them was obeyed. The barge had been told to wait,
and she was good at waiting; it was, the pilot used to say, the only thing she had ever been built
to do, and she did it better than any vessel on the coast.

When the scales were tested that spring, the inspector found them light by one part in nine
thousand. The harbour master thanked him, wrote the figure on a card, and pinned the card above the
desk. From that day on he subtracted it. He did not go back through the old ledgers to correct them,
but he drew a line in the margin at the date of the inspection, and under the line he wrote: below
this, known to be right; above it, known to be nearly so.

    def weigh(cargo, tare=0.0):
        \"\"\"Return the net weight; refuse what weighs less than its box.\"\"\"
        net = sum(item.kilograms for item in cargo) - tare
        if net < 0:
            raise ValueError(f"{net:.3f} kg is less than nothing")
        return {"net": net, "items": len(cargo)}

Prices: £12.50, €9,99 and ¥1500 (about 10 %). See section 4.2.1, or call +44 20 7946 0018.
Ölfässer, naïve façades, smørrebrød, Москва, Ελλάδα, 東京の港, 서울, שלום, مرحبا, नमस्ते.
Fractions ½ and ¼; arrows → ↔; a family 👩‍👩‍👧 and a flag 🇳🇴; combining e\u0301 against é.
tabs\tand\ttabs,  two spaces,   three;trailing blank \nCAPITALS, don't, DON'T, we'll, o'clock...
https://example.org/path?query=1&other=two#part  snake_case camelCase kebab-case 0x1F 1e-9 100000
"""
