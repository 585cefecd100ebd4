"""What `dew finetune` teaches, a task a file."""
