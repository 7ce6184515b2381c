"""What tables know of a model, and what they lack, found by lowering it without a GPU."""
