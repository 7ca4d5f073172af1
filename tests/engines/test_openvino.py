"""A GGUF draft in OpenVINO GenAI, which reads GGUF files of Llama and Qwen models.

python -m venv openvino && openvino/bin/pip install openvino-genai
SELFSPEC_OPENVINO_PYTHON=$PWD/openvino/bin/python pytest -m engines tests/engines/test_openvino.py
"""

from __future__ import annotations

import pytest
from other_python import ask
from test_llama_cpp import GAMMA, PROMPTS

from selfspec.export.drafts import export_draft
from selfspec.model import EMBEDDED
from selfspec.model.embedded import find_embedded, unpacked

pytestmark = [pytest.mark.engines, pytest.mark.embedded]


def test_openvino_drafts_with_it(tmp_path):
    """Its texts with the draft are its texts without."""
    asked = {"prompts": PROMPTS[:2], "tokens": 32, "gamma": GAMMA}
    with unpacked(find_embedded(EMBEDDED), tmp_path) as model:
        made = export_draft(
            EMBEDDED, f"early_exit:exit_layer=26:gamma={GAMMA}", "gguf", tmp_path / "d.gguf", tokens=0
        )
        script = ("SELFSPEC_OPENVINO_PYTHON", "openvino_answers.py")
        plain = ask(*script, model=str(model), draft=None, **asked)
        drafted = ask(*script, model=str(model), draft=str(made.path), **asked)
    assert drafted["texts"] == plain["texts"]
    print(f"OpenVINO {drafted['accepted']}/{drafted['drafted']}")
    assert drafted["accepted"] > 0
