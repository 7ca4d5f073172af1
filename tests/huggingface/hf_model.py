"""What the tests of transformers' ``generate`` share."""

DRAFT = {"draft": "early_exit", "exit_layer": 3, "gamma": 3}
PROMPTS = ["hello hello hello", "a", "what is this", "one two three", "so", "the end", "xyz xyz", "0123456789"]
