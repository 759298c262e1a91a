#!/usr/bin/env python3
"""MB/s of encoding, side by side with Hugging Face's tokenizers (its Rust library), with the same threads. Wants the packages
tokenizers and sentencepiece (pip install tokenizers tiktoken sentencepiece).

    bench/tokenizer/run.py [BUILD] [--megabytes 10] [--vocab 32000] [--threads 1,2] [--repeats 5]

Tokenizers built as GPT-2's, Llama 3's, Qwen 2's, Llama 2's and Mistral's are trained on the text, which tests/golden/tokenizer/texts.py
puts together of what the machine has. Each encodes all documents in turn with the other, so many times; the table has the medians. Ids are
compared in the same run."""
import argparse
import concurrent.futures
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden/tokenizer"))
import make
import plugin
import texts


def timed(run):
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def measure(folder, build, documents, threads, repeats):
    """In a process of its own: RAYON_NUM_THREADS is read once."""
    import tokenizers
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    encoded = [text.encode() for text in documents]
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        theirs = tokenizers.Tokenizer.from_file(str(path))
        ours = plugin.Tokenizer(str(pathlib.Path(build) / "plugins/tokenizer-bpe/heddle-tokenizer-bpe.so"), path)
        runs = {"theirs": lambda t=theirs: t.encode_batch_fast(documents, add_special_tokens=False), "ours": lambda o=ours: list(pool.map(o.encode, encoded))}
        seconds = {"theirs": [], "ours": []}
        for _ in range(repeats):
            for name, run in runs.items():
                took, result = timed(run)
                seconds[name].append(took)
                if name == "theirs":
                    want = [e.ids for e in result]
                else:
                    differ = sum(memoryview(a).cast("i").tolist() != b for a, b in zip(result, want))
        rates = {name: megabytes / statistics.median(took) for name, took in seconds.items()}
        print(f"{path.stem:8} {threads:7} {rates['theirs']:10.1f} {rates['ours']:8.1f} {rates['ours'] / rates['theirs']:7.1f} x   "
              f"{f'{differ} documents differ' if differ else 'same ids'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default=str(ROOT / "build"))
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    documents = list(texts.large(args.megabytes))
    if args.folder:
        return measure(args.folder, args.build, documents, int(args.threads), args.repeats)
    with tempfile.TemporaryDirectory() as folder:
        for name, made in make.published(documents, args.vocab).items():
            if name != "steps":
                made.save(f"{folder}/{name}.json")
        print(f"{sum(len(d.encode()) for d in documents) / 1e6:.1f} MB, {len(documents)} documents, vocabulary {args.vocab}, medians of {args.repeats}\n"
              f"tokenizer threads  HF MB/s  heddle MB/s  ratio")
        for threads in args.threads.split(","):
            subprocess.run([sys.executable, __file__, args.build, "--megabytes", str(args.megabytes), "--threads", threads, "--repeats", str(args.repeats),
                            "--folder", folder], check=True, env={**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": str(threads != "1").lower()})


if __name__ == "__main__":
    main()
