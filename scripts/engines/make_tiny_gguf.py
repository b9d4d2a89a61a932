#!/usr/bin/env python3
"""Writes a tiny Llama with random weights as a GGUF file that llama.cpp serves.

Its text is noise, its latency is honest: prefill grows faster than the prompt, decoding slows down
while others prefill, a warm prefix is much faster than a cold one. More layers make a slower pod.
No weights are loaded from anywhere, and the same arguments give the same file.

    make_tiny_gguf.py --layers 4 tiny.gguf
"""

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np

HEAD_DIM = 64
CONTEXT_TOKENS = 8192
# Small enough that logits stay finite through the layers, large enough that answers vary.
WEIGHT_SCALE = 0.08

# One line per message is all that a model without training needs of a chat template.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: "
)


def printable_alphabet() -> list[str]:
    """A token for each byte that prints, and for space and newline, spelt as byte-level BPE spells them.

    Other bytes have no token: what the model says is then always text. With a token for every byte it
    would say halves of UTF-8 characters, which llama.cpp holds back, and some streams would have no text
    event at all. In prompts bytes without a token are dropped.
    """
    # GPT-2's convention: bytes that do not print are moved to the code points from 256 on, in order, so
    # that no token holds a space or a control character.
    moved = [chr(256 + ord(character)) for character in "\n "]
    return moved + [chr(byte) for byte in range(ord("!"), ord("~") + 1)]


def add_tokenizer(writer: gguf.GGUFWriter) -> int:
    """Writes the vocabulary and returns its size: a token a byte, so prompt bytes are prompt tokens."""
    alphabet = printable_alphabet()
    # One token begins and ends texts, as in GPT-2: with ignore_eos nothing that does not print is sampled.
    special = "<|endoftext|>"
    # llama.cpp refuses a BPE vocabulary without merges; one rare pair satisfies it.
    merged = "zq"
    normal = gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*alphabet, special, merged])
    writer.add_token_types([*[normal] * len(alphabet), gguf.TokenType.CONTROL, normal])
    writer.add_token_merges([" ".join(merged)])
    writer.add_bos_token_id(len(alphabet))
    writer.add_eos_token_id(len(alphabet))
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(alphabet) + 2


def add_weights(writer: gguf.GGUFWriter, layers: int, hidden: int, vocabulary: int, seed: int) -> None:
    """Writes the tensors of a Llama; numpy shapes are (rows out, columns in)."""
    random = np.random.default_rng(seed)
    feed_forward = 2 * hidden

    def matrix(name: str, rows: int, columns: int) -> None:
        weights = random.standard_normal((rows, columns), dtype=np.float32)
        writer.add_tensor(f"{name}.weight", weights * np.float32(WEIGHT_SCALE))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, dtype=np.float32))

    matrix("token_embd", vocabulary, hidden)
    for layer in range(layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}.{part}", hidden, hidden)
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.ffn_gate", feed_forward, hidden)
        matrix(f"{block}.ffn_up", feed_forward, hidden)
        matrix(f"{block}.ffn_down", hidden, feed_forward)
    norm("output_norm")
    matrix("output", vocabulary, hidden)


def write_model(path: Path, layers: int, hidden: int, seed: int) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    heads = hidden // HEAD_DIM
    writer.add_name(f"tiny-random-{layers}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    vocabulary = add_tokenizer(writer)
    writer.add_vocab_size(vocabulary)
    add_weights(writer, layers, hidden, vocabulary, seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes a tiny Llama with random weights as GGUF.")
    parser.add_argument("path", type=Path, help="file to write")
    parser.add_argument("--layers", type=int, default=2, help="transformer blocks (default 2)")
    parser.add_argument("--hidden", type=int, default=256, help=f"width, a multiple of {HEAD_DIM} (default 256)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights (default 1)")
    args = parser.parse_args()
    if args.layers < 1 or args.hidden < HEAD_DIM or args.hidden % HEAD_DIM:
        parser.error(f"--layers must be 1 or more and --hidden a multiple of {HEAD_DIM}")
    # A half-written model must never look like a whole one.
    partial = args.path.with_suffix(".partial")
    write_model(partial, args.layers, args.hidden, args.seed)
    partial.replace(args.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
