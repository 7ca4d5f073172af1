"""A question, streamed; then with and without drafts: one text, in other numbers of passes."""

import selfspec

engine = selfspec.load("smollm2-135m")  # the embedded model; also a folder, a .gguf file, a hub id
question = "Summarise in one sentence: The Tagus rises in Spain, crosses Portugal and meets the sea in Lisbon."
for chunk in engine.stream(question, max_new_tokens=64):
    print(chunk.text, end="", flush=True)  # chunk.source says who wrote it: "draft", "bonus" or "plain"

drafted = engine.generate(question, max_new_tokens=64, draft="suffix")
plain = engine.generate(question, max_new_tokens=64, draft="plain")
assert drafted.text == plain.text
print(f"\n{drafted.stats.rounds} passes in place of {plain.stats.rounds}, α {drafted.stats.acceptance_rate:.2f}")
