"""What an installed wheel must do, without torch, pytest, compiler and network.

The recipe of cibuildwheel (pyproject.toml) runs it for every wheel, and the slow test of the wheel here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tiny_folder import write_model

KEPT = {".py", ".pyi", ".typed", ".sh", ".jsonl", ".html", ".css", ".js", ".svg"}
DRAFTS = ("ngram", "suffix", "early_exit")


def main():
    import selfspec
    from selfspec.runtime.packing import native

    package = Path(selfspec.__file__).parent
    assert "site-packages" in package.parts, f"{package} is no installation"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    others = [path.name for path in files if path.suffix not in KEPT]
    assert len(others) == 1, f"beside sources only the core belongs into a wheel: {others}"
    assert others[0].startswith("_native.")
    assert {"index.html", "main.js", "style.css"} <= {path.name for path in files}, "the server's page is missing"
    assert not {"torch", "transformers"} & set(sys.modules)
    with tempfile.TemporaryDirectory() as home:
        os.environ["SELFSPEC_CACHE"] = f"{home}/cache"
        model = write_model(Path(home, "tiny"))
        for bits in (None, 16, 8, 4):
            engine = selfspec.load(model, bits=bits)
            texts = {
                draft: engine.generate("one two one two", draft=draft, max_new_tokens=24, ignore_eos=True).token_ids
                for draft in ("plain", *DRAFTS)
            }
            assert len(texts["plain"]) == 24
            assert all(text == texts["plain"] for text in texts.values()), texts
        command = [sys.executable, "-m", "selfspec", "generate", "Hi", "--model", model, "--max-new-tokens", "4"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert {"page.html", "page.css"} <= {path.name for path in files}, "the report's template is missing"
    print("selfspec", selfspec.__version__, native().kernel_sets())


if __name__ == "__main__":
    main()
