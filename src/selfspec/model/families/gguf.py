"""Which GGUF architectures are which families, and what llama.cpp's converter does to their weights, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from selfspec.errors import UnsupportedModelError
from selfspec.model.families.catalogue import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selfspec.model.families.base import Family
    from selfspec.model.reading import Fields

RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"

_TENSORS = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "final_norm": "output_norm",
    "head": "output",
    "attention_norm": "attn_norm",
    "attention_after": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "mlp_after": "post_ffw_norm",
    **{role: f"attn_{role}" for role in ("q", "k", "v", "qkv", "q_norm", "k_norm")},
    "qkv_groups": "attn_qkv",
    "o": "attn_output",
    **{role: f"ffn_{role}" for role in ("gate", "up", "down")},
    "gate_up": "ffn_up",
    "router": "ffn_gate_inp",
    **{f"expert_{role}": f"ffn_{role}_exps" for role in ("gate", "up", "down")},
    "experts_down": "ffn_down_exps",
    **{f"shared_{role}": f"ffn_{role}_shexp" for role in ("gate", "up", "down")},
    "shared_router": "ffn_gate_inp_shexp",
}
"""Role -> tensor, without the layer and without .weight or .bias."""


@dataclass(frozen=True, slots=True)
class GgufForm:
    """A family as GGUF files have it.

    ``architecture`` is their ``general.architecture``; several families may share one, and then the first whose
    key ``when`` is there and not 0 is meant. Keys are those below the architecture's name. ``keys`` maps them
    to what config.json calls them, beyond what all files have; ``needed`` are those among them that must be
    there. ``only`` maps keys to the values under which the family computes what we compute. ``fixed`` is what
    the architecture implies.

    ``eps`` is the key of the norms' epsilon. ``rope`` is "none", "plain", or "scaled": plain, or with factors in
    the tensor ``rope_freqs.weight``. ``window``: "none" (the file has no window), "all" layers have it, or in
    all but each n-th, n being ``window_step`` where the file does not say.

    ``interleaved``: rows of queries and keys are kept with the members of a rotated pair side by side.
    ``plus_one``: norms have 1 added. ``tensors`` names the tensor of a role, or of a module where the role is
    not enough, that is not called as in other families.
    """

    architecture: str
    family: str
    when: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    eps: str = RMS_EPS
    rope: Literal["none", "plain", "scaled"] = "plain"
    window: Literal["none", "all", "some"] = "none"
    window_step: int = 0
    interleaved: bool = False
    plus_one: bool = False
    tensors: Mapping[str, str] = field(default_factory=dict)

    def tensor(self, role: str, module: str) -> str:
        """The tensor of a role; ``module`` is the last part of the weight's name, without .weight."""
        bare = role.removesuffix("_bias")
        base = self.tensors.get(module) or self.tensors.get(bare) or _TENSORS[bare]
        return f"{base}.{'weight' if role == bare else 'bias'}"


_SOFTMAX = 1  # llama.cpp's number of that gate
_EXPERTS: dict[str, Any] = {
    "needed": ("expert_count", "expert_used_count"),
    "only": {"expert_gating_func": (_SOFTMAX,)},
}
_SILU = {"hidden_act": "silu"}
_EXPERT_WIDTH = {"expert_feed_forward_length": "moe_intermediate_size"}
_CHOSEN = {"expert_used_count": "num_experts_per_tok"}
_QWEN_EXPERTS = {"expert_count": "num_experts", **_CHOSEN, **_EXPERT_WIDTH}
_QWEN_MOE_FIXED = {**_SILU, "decoder_sparse_step": 1, "mlp_only_layers": []}
_LOCAL_EXPERTS = {"expert_count": "num_local_experts", **_CHOSEN}
_GRANITE: dict[str, Any] = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_WINDOW = ("attention.sliding_window",)
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh"}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}

FORMS = (
    GgufForm(
        "llama",
        "mixtral",
        when="expert_count",
        keys=_LOCAL_EXPERTS,
        fixed={**_SILU, "sliding_window": None},
        rope="scaled",
        interleaved=True,
        **_EXPERTS,
    ),
    GgufForm("llama", "llama", fixed=_SILU, rope="scaled", interleaved=True),
    GgufForm("qwen2", "qwen2", fixed=_SILU),
    GgufForm("qwen3", "qwen3", fixed=_SILU),
    GgufForm("smollm3", "smollm3", fixed={**_SILU, "no_rope_layer_interval": 4}, rope="scaled", interleaved=True),
    # a false "finetuned" switches the rotary embedding off there
    GgufForm(
        "granite",
        "granite",
        keys=_GRANITE,
        needed=("logit_scale",),
        only={"rope.scaling.finetuned": (True,)},
        fixed=_SILU,
        rope="scaled",
        interleaved=True,
    ),
    GgufForm("olmo2", "olmo3", when="attention.sliding_window", fixed=_SILU, window="some", window_step=4),
    GgufForm("olmo2", "olmo2", fixed=_SILU),
    GgufForm("exaone4", "exaone4", fixed=_SILU, rope="scaled", window="some", window_step=4),
    GgufForm("phi3", "phi3", fixed=_SILU, window="all"),
    GgufForm(
        "gemma2",
        "gemma2",
        keys=_CAPS,
        needed=_WINDOW,
        fixed=_GEMMA,
        window="some",
        window_step=2,
        plus_one=True,
    ),
    GgufForm(
        "gemma3",
        "gemma3_text",
        keys={"final_logit_softcapping": "final_logit_softcapping"},
        fixed=_GEMMA,
        window="some",
        window_step=6,
        plus_one=True,
    ),
    GgufForm(
        "stablelm",
        "stablelm",
        keys={"use_parallel_residual": "use_parallel_residual"},
        needed=("use_parallel_residual",),
        fixed=_SILU,
        eps=LAYER_EPS,
    ),
    GgufForm("starcoder2", "starcoder2", fixed={"hidden_act": "gelu_pytorch_tanh"}, eps=LAYER_EPS),
    GgufForm(
        "cohere2",
        "cohere2",
        keys={"logit_scale": "logit_scale"},
        needed=("logit_scale", *_WINDOW),
        fixed=_SILU,
        eps=LAYER_EPS,
        window="some",
        window_step=4,
    ),
    GgufForm("glm4", "glm4", fixed=_SILU),
    GgufForm("gpt2", "gpt2", fixed={"activation_function": "gelu_new"}, eps=LAYER_EPS, rope="none"),
    GgufForm(
        "gptneox",
        "gpt_neox",
        keys={"use_parallel_residual": "use_parallel_residual"},
        needed=("use_parallel_residual",),
        fixed={"hidden_act": "gelu"},
        eps=LAYER_EPS,
    ),
    # the new decoder architecture with one group of heads is the old one
    GgufForm(
        "falcon",
        "falcon",
        keys={"attention.head_count_kv": "num_kv_heads"},
        fixed={"activation": "gelu", "new_decoder_architecture": True, "alibi": False, "bias": False},
        eps=LAYER_EPS,
        tensors={"ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"},
    ),
    GgufForm(
        "qwen2moe",
        "qwen2_moe",
        keys={
            **_QWEN_EXPERTS,
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        fixed={**_QWEN_MOE_FIXED, "norm_topk_prob": False},
        **_EXPERTS,
    ),
    GgufForm(
        "qwen3moe", "qwen3_moe", keys=_QWEN_EXPERTS, fixed={**_QWEN_MOE_FIXED, "norm_topk_prob": True}, **_EXPERTS
    ),
    GgufForm(
        "olmoe",
        "olmoe",
        keys={"expert_count": "num_experts", **_CHOSEN},
        fixed={**_SILU, "norm_topk_prob": False},
        **_EXPERTS,
    ),
    GgufForm(
        "granitemoe",
        "granitemoe",
        keys={**_GRANITE, **_LOCAL_EXPERTS},
        needed=("logit_scale", *_EXPERTS["needed"]),
        only={**_EXPERTS["only"], "rope.scaling.finetuned": (True,)},
        fixed=_SILU,
        rope="scaled",
        interleaved=True,
    ),
)


def gguf_form(metadata: Fields) -> GgufForm:
    """The form of the file with this metadata.

    Raises
    ------
    UnsupportedModelError
        No family covers its architecture.
    """
    architecture = metadata.text("general.architecture")
    for form in FORMS:
        if form.architecture == architecture and (
            not form.when or metadata.raw(f"{architecture}.{form.when}") not in (None, 0)
        ):
            return form
    supported = ", ".join(dict.fromkeys(form.architecture for form in FORMS))
    raise UnsupportedModelError(f"the GGUF architecture {architecture!r} is not supported; supported: {supported}")


def family_named(name: str) -> Family:
    """The facts of a family."""
    return next(family for family in FAMILIES if family.name == name)


def form_of(family: str) -> GgufForm | None:
    """The form of a family's files; None where llama.cpp does not have it."""
    return next((form for form in FORMS if form.family == family), None)
