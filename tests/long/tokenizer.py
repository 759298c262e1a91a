#!/usr/bin/env python3
"""tokenizer-bpe against Hugging Face's tokenizers and tiktoken, live: 10 MB in the languages that
are installed here, id for id, and back. Part of ./run-tests --long; ends with 77 (left out) where the packages are missing: pip install
tokenizers tiktoken.

    tests/long/tokenizer.py [BUILD] [--megabytes 10]"""
import argparse
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden/tokenizer"))
try:
    import tiktoken
    import tokenizers
except ImportError as missing:
    print(f"left out: {missing}")
    sys.exit(77)
import make
import plugin
import texts

EXACT = ("gpt2", "llama3", "llama2", "falcon", "bloom", "deepseek", "gemma")  # the others normalize, or leave out a space


def known(text):
    """Characters that all of the libraries have, as texts.is_settled says."""
    return all(ord(c) < 128 or texts.is_settled(c) for c in text)


def compare(name, documents, ours, encode, decode, exact):
    failed = 0
    for number, text in enumerate(documents):
        want, got = encode(text), ours.ids(text, plugin.SPECIAL)
        if want != got:
            at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
            print(f"{name}: document {number}, id {at}: {got[at:at + 5]} instead of {want[at:at + 5]}")
            failed += 1
        back = ours.decode(got)
        if back.decode(errors="replace") != decode(want) or (exact and "▁" not in text and ours.decode(ours.ids(text, 0)) != text.encode()):
            print(f"{name}: document {number} comes back as another: {back[:60]!r}")
            failed += 1
    print(f"{name}: {len(documents)} documents, {failed} differ", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default=str(ROOT / "build"))
    parser.add_argument("--megabytes", type=float, default=10)
    args = parser.parse_args()
    bpe = f"{args.build}/plugins/tokenizer-bpe/heddle-tokenizer-bpe.so"
    documents = [text for text in texts.large(args.megabytes) if known(text)]
    print(f"{sum(len(text.encode()) for text in documents) / 1e6:.1f} MB", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, made in make.published(documents, 8000).items():
            made.save(f"{folder}/{name}.json")
            failed += compare(name, documents, plugin.Tokenizer(bpe, f"{folder}/{name}.json"), lambda text: made.encode(text, add_special_tokens=False).ids,
                              lambda ids: made.decode(ids, skip_special_tokens=False), name in EXACT)
        tokens = make.ranks(documents, 8000)
        for name, (count, _, _) in make.TIKTOKEN.items():
            made = make.encoding(name, tokens)
            make.write_ranks(pathlib.Path(folder) / f"{name}.tiktoken", make.fill(tokens, count), count)
            failed += compare(name, documents, plugin.Tokenizer(bpe, f"{folder}/{name}.tiktoken"), lambda text: made.encode(make.form(name, text), allowed_special="all"),
                              lambda ids: made.decode_bytes(ids).decode(errors="replace"), name != "qwen")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
