"""A dozen short prompts of several kinds: copying, lists, sums, code, languages, and open questions."""

BUILT_IN = (
    "Repeat three times: the quick brown fox jumps over the lazy dog.",
    "What is 17 plus 25? Explain each step.",
    "Count from one to twenty in words.",
    "Write a Python function that adds two numbers, then one that adds three numbers.",
    "Name three rivers in Portugal.",
    "Translate to French: The cat sleeps on the chair, and the dog sleeps under the chair.",
    "Copy this list in reverse order: apple, pear, plum, grape, fig.",
    "Why does the moon change its shape?",
    "Write a four-line poem. Start every line with the word Rain.",
    'Return JSON with the fields "name" and "age" for Ana, 31, and Rui, 45.',
    "Summarise in one sentence: Bees visit flowers for nectar. On the way they carry pollen from flower to flower.",
    "Is a whale a fish? Answer yes or no, then give the reason.",
)
