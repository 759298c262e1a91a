#!/usr/bin/env python3
"""Token files between heddle and datatrove, whose readers nanotron trains from (PyPI's nanotron 0.4 has none of its own), by its own code:

    pip install datatrove torch numpy
    tests/golden/trove.py HEDDLE

- DatatroveFileDataset reads PREFIX.bin of `heddle data tokenize`: the same windows, and positions that begin anew behind each end of a document.
- MegatronTokenizedFile writes the same documents with the same bytes, PREFIX.bin and PREFIX.idx.
- TokenizedFile's .ds is read by data.format: nanogpt, with the same loss as PREFIX.bin."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from datatrove.pipeline.tokens.megatron_tokenizer import MegatronTokenizedFile
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from datatrove.utils.dataset import DatatroveFileDataset

HEDDLE = pathlib.Path(sys.argv[1]).resolve()
DATA = pathlib.Path(__file__).resolve().parent / "data" / "indexed"
SEQ = 64
END = json.loads((DATA / "tokenizer.json").read_text())["model"]["vocab"]["<|endoftext|>"]


def heddle(folder, *words):
    done = subprocess.run([HEDDLE, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documents(ids):
    """Each with the token that ends it."""
    ends = numpy.flatnonzero(ids == END) + 1
    return [part for part in numpy.split(ids, ends) if part.size]


def loss(folder, path, form):
    heddle(folder, "train", "job.yaml", f"data.train={path}", f"data.format={form}", f"job.name={form}")
    rows = [json.loads(line) for line in (folder / f"runs/{form}/metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        lines = [line for line in (DATA / "corpus.jsonl").read_text().splitlines() if json.loads(line)["text"]]
        (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
        heddle(folder, "data", "tokenize", "--tokenizer", DATA / "tokenizer.json", "--append-eod", "--no-special", "--to", "ours", "corpus.jsonl")
        ids = numpy.fromfile(folder / "ours.bin", numpy.uint16)
        said = json.loads(heddle(folder, "data", "inspect", "ours", "--json"))
        assert said["tokens"] == ids.size and said["documents"] == len(documents(ids)) == len(lines), said

        dataset = DatatroveFileDataset(str(folder / "ours.bin"), SEQ, token_size=2, return_positions=True, positions_from_eos_token_id=END)
        windows = [dataset[i] for i in range(len(dataset))]
        assert len(windows) == ids.size // (SEQ + 1)
        for i, window in enumerate(windows):
            part = ids[i * (SEQ + 1):(i + 1) * (SEQ + 1)]
            assert (window["input_ids"].numpy() == part).all()
            assert window["positions"].tolist() == [k for piece in documents(part) for k in range(piece.size)]

        theirs = MegatronTokenizedFile(str(folder), "theirs")
        trove = TokenizedFile(str(folder), "theirs.ds", save_index=True)
        for document in documents(ids):
            theirs.write(document.tolist())
            trove.write(document.tolist(), None)
        theirs.close()
        trove.close()
        for suffix in ("bin", "idx"):
            assert (folder / f"theirs.{suffix}").read_bytes() == (folder / f"ours.{suffix}").read_bytes(), suffix
        assert json.loads(heddle(folder, "data", "inspect", "theirs", "--json"))["documents"] == len(lines)

        (folder / "job.yaml").write_text("job: {steps: 3}\nmodel: {use: transformer, family: gpt2, layers: 1, hidden: 16, heads: 2, vocab: 320}\n"
                                         f"data: {{train: x, seq_len: {SEQ}, batch: 4}}\noptimizer: {{use: adamw, lr: 1e-3}}\n")
        assert loss(folder, "theirs.ds", "nanogpt") == loss(folder, "ours.bin", "megatron")
    print(f"{len(windows)} windows, {len(lines)} documents, {ids.size} tokens: the same")


if __name__ == "__main__":
    main()
