"""llama-cpp-python with and without `selfspec.llamacpp.draft`, in turn, and the ratio of their times.

    python bench/llama_cpp_python.py model.gguf --prompts prompts.jsonl --task summarization

It runs where llama-cpp-python is (docs/exports.md). Two models, one with a draft, answer every prompt of the task
once, greedily, the reading of the prompt included; they alternate, and a pair is plain's seconds and ours. The
figure is the median ratio with a bootstrap interval of 90 %. One JSON line ends the output.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from llama_cpp import Llama

import selfspec.llamacpp
from selfspec.measure.pairs import paired_ratio


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--prompts", required=True, help="JSON Lines with `prompt` or `turns`, and perhaps `task`")
    parser.add_argument("--task", default=None, help="only prompts of this task")
    parser.add_argument("--draft", default="suffix")
    parser.add_argument("--row-price", type=float, default=0.3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=9)
    args = parser.parse_args()
    rows = [json.loads(line) for line in Path(args.prompts).read_text(encoding="utf-8").splitlines()]
    prompts = [row["turns"][0] if "turns" in row else row["prompt"] for row in rows
               if args.task in (None, row.get("task"))]  # fmt: skip
    drafts = selfspec.llamacpp.draft(args.draft, row_price=args.row_price)
    settings = {"n_ctx": args.context, "n_threads": args.threads, "n_threads_batch": args.threads, "verbose": False}
    plain = Llama(args.model, **settings)
    drafted = Llama(args.model, draft_model=drafts, logits_all=True, **settings)
    pairs, equal, tokens = [], 0, 0
    for pair, prompt in enumerate(prompts[: args.pairs + 1]):
        runs = {}
        for name, llm in (("plain", plain), ("ours", drafted))[:: 1 if pair % 2 else -1]:
            asked = [{"role": "user", "content": prompt}]
            began = time.perf_counter()
            said = llm.create_chat_completion(asked, temperature=0.0, max_tokens=args.tokens)
            runs[name] = (time.perf_counter() - began, said)
        if pair == 0:
            continue  # both have warmed up
        pairs.append((runs["plain"][0], runs["ours"][0]))
        texts = {run[1]["choices"][0]["message"]["content"] for run in runs.values()}
        equal, tokens = equal + (len(texts) == 1), tokens + runs["plain"][1]["usage"]["completion_tokens"]
        print(f"plain {pairs[-1][0]:6.2f} s   {args.draft} {pairs[-1][1]:6.2f} s")
    found = paired_ratio([(ours, plainly) for plainly, ours in pairs])
    interval = f"{found.median:.2f}x [{found.low:.2f}, {found.high:.2f}]"
    print(
        f"with drafts against without: {interval}, {found.verdict()}; {equal} of {len(pairs)} texts equal; "
        f"{drafts.accepted} of {drafts.drafted} drafts held"
    )
    counts = {"accepted": drafts.accepted, "drafted": drafts.drafted, "tokens": tokens, "equal": equal}
    print(json.dumps({"pairs": pairs, **counts, "draft": args.draft, "row_price": args.row_price}))


if __name__ == "__main__":
    main()
