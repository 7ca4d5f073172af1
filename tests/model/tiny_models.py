"""What the tiny checkpoints of these tests consist of."""

import json

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SIZES = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("Ã", "©"), ("©", "a")]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_vocabulary():
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]
    return {piece: number for number, piece in enumerate(pieces)}


def byte_tokenizer():
    tokenizer = Tokenizer(models.BPE(byte_vocabulary(), MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def save_tokenizer(folder, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def interleave(rows, heads):
    """What llama.cpp's converter does to query and key rows."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(rng):
    d, ff, vocab, kv = 32, 64, len(byte_vocabulary()), 16
    shapes = {"token_embd.weight": (vocab, d), "output_norm.weight": (d,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (d,), f"blk.{layer}.ffn_norm.weight": (d,),
            f"blk.{layer}.attn_q.weight": (d, d), f"blk.{layer}.attn_k.weight": (kv, d),
            f"blk.{layer}.attn_v.weight": (kv, d), f"blk.{layer}.attn_output.weight": (d, d),
            f"blk.{layer}.ffn_gate.weight": (ff, d), f"blk.{layer}.ffn_up.weight": (ff, d),
            f"blk.{layer}.ffn_down.weight": (d, ff),
        }  # fmt: skip
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_metadata(writer, pre, extra):
    vocabulary = byte_vocabulary()
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(extra.pop("model", "gpt2"))
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(vocabulary))
    writer.add_token_types([3 if token in SPECIAL else 1 for token in vocabulary])
    writer.add_token_merges([f"{a} {b}" for a, b in extra.pop("merges", MERGES)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in extra.items():
        add = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
        add[type(value)](key, value)
