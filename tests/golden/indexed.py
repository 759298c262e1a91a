#!/usr/bin/env python3
"""Writes tests/golden/data/indexed: what Megatron's own writer makes of corpus.jsonl, with bytes and with a small BPE.

    pip install megatron-core torch numpy tokenizers
    tests/golden/indexed.py                  # writes the files
    tests/golden/indexed.py PREFIX DTYPE     # reads PREFIX by Megatron's own reader: prints documents, tokens and a hash of all ids

    corpus.jsonl       documents: scripts of several languages, an empty one, special tokens in the text, one of 3000 words
    tokenizer.json     a byte-level BPE of 320 ids, trained on it
    bytes.bin, .idx    ids are bytes, 256 ends a document
    bpe.bin, .idx      ids of tokenizer.json, <|endoftext|> ends a document
An empty document has no sequence, and no end, as tools/preprocess_data.py of Megatron-LM writes it.
"""
import hashlib
import json
import pathlib
import random
import sys

import numpy
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

OUT = pathlib.Path(__file__).resolve().parent / "data" / "indexed"


def documents():
    random.seed(7)
    words = "the rank of a mesh that sends its shard to all others waits for the slowest of them".split()
    yield "One rank sends, the others wait.\nThen all of them go on.\n"
    yield "Größe, naïve, Ελλάδα, Москва, 東京, العربية, 👩‍🚀 and a tab\t."
    yield ""
    yield "a <|endoftext|> that stands in the text"
    yield " leading and trailing blanks   \n\n\n"
    yield " ".join(random.choice(words) for _ in range(3000))
    for i in range(40):
        yield " ".join(random.choice(words) for _ in range(i + 1)) + f" {i}."


def write(name, encode, end):
    builder = IndexedDatasetBuilder(str(OUT / f"{name}.bin"), dtype=DType.optimal_dtype(320))
    for text in documents():
        ids = encode(text)
        builder.add_document(torch.IntTensor(ids + [end]) if ids else torch.IntTensor([]), [len(ids) + 1] if ids else [])
    builder.finalize(str(OUT / f"{name}.idx"))


def main():
    if len(sys.argv) > 1:
        data = IndexedDataset(sys.argv[1])
        ids = numpy.concatenate([data[i] for i in range(len(data))])
        print(len(data.document_indices) - 1, ids.size, data.index.dtype.__name__, hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest())
        return
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    OUT.mkdir(parents=True, exist_ok=True)
    with open(OUT / "corpus.jsonl", "w", encoding="utf-8") as f:
        for i, text in enumerate(documents()):
            f.write(json.dumps({"id": 10**i, "text": text}, ensure_ascii=i % 2 == 0) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(documents(), trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(str(OUT / "tokenizer.json"), pretty=False)
    write("bytes", lambda text: list(text.encode()), 256)
    write("bpe", lambda text: tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id("<|endoftext|>"))


main()
