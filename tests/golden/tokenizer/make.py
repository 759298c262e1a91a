#!/usr/bin/env python3
"""Makes tests/golden/data/tokenizer: small tokenizers as the published ones are built, documents, and the ids that Hugging Face's
tokenizers, tiktoken and SentencePiece give them. Wants the packages tokenizers, tiktoken and sentencepiece.

    tests/golden/tokenizer/make.py [FOLDER]

A tokenizer is NAME.json, NAME.model, or NAME.ranks: the first ranks of a tiktoken file, which readers fill up to the number of ranks by which
it is known. NAME.ids has a line a document: its number of ids, and the FNV-1a hash of their 32 bits, with special tokens in the
text as ids, and without."""
import base64
import json
import pathlib
import re
import struct
import sys
import unicodedata

import texts

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
# BLOOM's has a class in a class; DeepSeek-V3's; of Falcon's two steps behind ByteLevel.
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
            " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
R50K = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# name: ranks, regex, special tokens
TIKTOKEN = {
    "cl100k": (100256, CL100K, {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260,
                                "<|endofprompt|>": 100276}),
    "r50k": (50256, R50K, {"<|endoftext|>": 50256}),
    "o200k": (199998, O200K, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
    "llama3": (128000, LLAMA3, {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|start_header_id|>": 128006,
                                "<|end_header_id|>": 128007, "<|eot_id|>": 128009}),
    "qwen": (151643, QWEN2, {name: 151643 + i for i, name in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>",
                                                                       *(f"<|extra_{k}|>" for k in range(205))])}),
}

free = [i for i in range(128000, 128256) if i not in TIKTOKEN["llama3"][2].values()]
TIKTOKEN["llama3"][2].update({f"<|reserved_special_token_{k}|>": i for k, i in enumerate(free)})


def byte_level(regex=None, **model):
    import tokenizers as t
    made = t.Tokenizer(t.models.BPE(**model))
    whole = t.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    made.pre_tokenizer = whole if regex is None else t.pre_tokenizers.Sequence([t.pre_tokenizers.Split(t.Regex(regex), "isolated"), whole])
    made.decoder = t.decoders.ByteLevel()
    made.post_processor = t.processors.ByteLevel(trim_offsets=False)
    return made


def train(made, corpus, vocab, special, **options):
    import tokenizers as t
    trainer = t.trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False, **options)
    made.train_from_iterator(corpus, trainer)
    return made


def characters(corpus, vocab, build):
    """BPE over characters with byte_fallback: trained where words are cut, used as `build` says."""
    import tokenizers as t
    cut = t.Tokenizer(t.models.BPE())
    cut.pre_tokenizer = t.pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    train(cut, corpus, vocab, special + [f"<0x{b:02X}>" for b in range(256)], limit_alphabet=300)
    trained, whole = json.loads(cut.to_str()), json.loads(build(t.Tokenizer(t.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))).to_str())
    whole["model"].update(vocab=trained["model"]["vocab"], merges=trained["model"]["merges"])
    whole["added_tokens"] = [a for a in trained["added_tokens"] if a["content"] in special]
    whole["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return t.Tokenizer.from_str(json.dumps(whole))


def llama2(made):
    import tokenizers as t
    made.normalizer = t.normalizers.Sequence([t.normalizers.Prepend("▁"), t.normalizers.Replace(" ", "▁")])
    made.decoder = t.decoders.Sequence([t.decoders.Replace("▁", " "), t.decoders.ByteFallback(), t.decoders.Fuse(), t.decoders.Strip(" ", 1, 0)])
    return made


def mistral(made):
    import tokenizers as t
    made.pre_tokenizer = t.pre_tokenizers.Metaspace("▁", "first", split=False)
    made.decoder = t.decoders.Sequence([t.decoders.Replace("▁", " "), t.decoders.ByteFallback(), t.decoders.Fuse(), t.decoders.Strip(" ", 1, 0)])
    return made


def steps(made):
    """What the published ones do not have: digits, white space that is left out, added tokens of every kind, Metaspace that cuts."""
    import tokenizers as t
    made.normalizer = t.normalizers.Sequence([t.normalizers.NFKC(), t.normalizers.Lowercase()])
    p = t.pre_tokenizers
    made.pre_tokenizer = p.Sequence([p.Split("-", "merged_with_previous"), p.Split(t.Regex("[,.]+"), "merged_with_next"), p.Whitespace(),
                                     p.Digits(individual_digits=True), p.Metaspace("▁", "always", split=True)])
    made.decoder = t.decoders.Metaspace("▁", "always")
    return made


def falcon(made):
    import tokenizers as t
    p = t.pre_tokenizers
    made.pre_tokenizer = p.Sequence([p.Punctuation("contiguous"), p.ByteLevel(add_prefix_space=False), p.Digits(individual_digits=False),
                                     p.Split(t.Regex("[0-9][0-9][0-9]"), "isolated")])
    return made


def splits(made, regexes):
    import tokenizers as t
    p = t.pre_tokenizers
    made.pre_tokenizer = p.Sequence([*(p.Split(t.Regex(r), "isolated") for r in regexes), p.ByteLevel(add_prefix_space=False, use_regex=False)])
    return made


def gemma(made):
    import tokenizers as t
    made.normalizer = t.normalizers.Replace(" ", "▁")
    made.pre_tokenizer = t.pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = t.decoders.Sequence([t.decoders.Replace("▁", " "), t.decoders.ByteFallback(), t.decoders.Fuse()])
    return made


def delimiter(made):
    import tokenizers as t
    p = t.pre_tokenizers
    made.pre_tokenizer = p.Sequence([p.CharDelimiterSplit("e"), p.ByteLevel(add_prefix_space=True), p.Digits(individual_digits=True)])
    return made


def published(corpus, vocab):
    """name: a tokenizer built as a published one is."""
    import tokenizers as t
    alphabet = t.pre_tokenizers.ByteLevel.alphabet()
    made = {"gpt2": train(byte_level(), corpus, vocab, ["<|endoftext|>"], initial_alphabet=alphabet),
            "llama3": train(byte_level(LLAMA3, ignore_merges=True), corpus, vocab, ["<|begin_of_text|>", "<|end_of_text|>"], initial_alphabet=alphabet),
            "qwen2": train(byte_level(QWEN2), corpus, vocab, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], initial_alphabet=alphabet),
            "llama2": characters(corpus, vocab, llama2), "mistral": characters(corpus, vocab, mistral), "steps": characters(corpus, vocab, steps)}
    made.update(falcon=train(falcon(byte_level()), corpus, vocab, ["<|endoftext|>"], initial_alphabet=alphabet),
                bloom=train(splits(byte_level(), [BLOOM]), corpus, vocab, ["<s>", "</s>"], initial_alphabet=alphabet),
                deepseek=train(splits(byte_level(), DEEPSEEK), corpus, vocab, ["<|end▁of▁sentence|>"], initial_alphabet=alphabet),
                gemma=characters(corpus, vocab, gemma), delimiter=train(delimiter(byte_level()), corpus, vocab, ["<|endoftext|>"], initial_alphabet=alphabet))
    made["qwen2"].normalizer = t.normalizers.NFC()
    made["gpt2"].add_tokens([t.AddedToken("    ", normalized=False), t.AddedToken("    " * 2, normalized=False)])
    made["steps"].add_tokens([t.AddedToken("human", single_word=True), t.AddedToken("Menschen", lstrip=True), t.AddedToken("frei", rstrip=True)])
    made["steps"].add_special_tokens([t.AddedToken("<mask>", lstrip=True, rstrip=True)])
    bos = made["llama3"].token_to_id("<|begin_of_text|>")
    made["llama3"].post_processor = t.processors.Sequence([t.processors.ByteLevel(trim_offsets=False), t.processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])])
    return made


def ranks(corpus, vocab):
    """The first ranks of a tiktoken file: the bytes, and the tokens of a byte-level BPE in the order of their merges."""
    from tokenizers import pre_tokenizers
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained = train(byte_level(), corpus, vocab, [], initial_alphabet=alphabet)
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printed + [b for b in range(256) if b not in printed]
    byte_of = {chr(b) if b in printed else chr(256 + order.index(b) - len(printed)): b for b in order}
    tokens = sorted(trained.get_vocab().items(), key=lambda token: token[1])
    return [bytes([b]) for b in order] + [b for b in (bytes(byte_of[c] for c in name) for name, _ in tokens) if len(b) > 1]


def fill(tokens, count):
    """Tokens that no text has, up to the number by which a file is known."""
    return tokens + [b"\xff\xfe" + struct.pack(">I", i) for i in range(len(tokens), count)]


def encoding(name, tokens):
    import tiktoken
    count, regex, special = TIKTOKEN[name]
    return tiktoken.Encoding(name, pat_str=regex, mergeable_ranks={token: i for i, token in enumerate(fill(tokens, count))}, special_tokens=special)


def form(name, text):
    """Qwen's tokenization_qwen.py normalizes a text before tiktoken has it."""
    return unicodedata.normalize("NFC", text) if name == "qwen" else text


def write_ranks(path, tokens, lines):
    path.write_text("".join(f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(tokens[:lines])))


def fnv(ids):
    value = 0xcbf29ce484222325
    for byte in struct.pack(f"<{len(ids)}i", *ids):
        value = ((value ^ byte) * 0x100000001b3) & 0xffffffffffffffff
    return value


def line(special, text):
    return f"{len(special)} {fnv(special):016x} {len(text)} {fnv(text):016x}\n"


def hf_ids(made, text):
    special = made.encode(text, add_special_tokens=False).ids
    made.encode_special_tokens = True
    plain = made.encode(text, add_special_tokens=False).ids
    made.encode_special_tokens = False
    return special, plain


def sentencepiece(path, corpus):
    """A BPE with byte_fallback that changes no text, as Llama 2's, and its ids; it takes special tokens for text."""
    import sentencepiece as s
    corpus = corpus[-6:]
    s.SentencePieceTrainer.train(sentence_iterator=iter(line for text in corpus for line in text.split("\n")), model_prefix=str(path.with_suffix("")),
                                 vocab_size=700, model_type="bpe", byte_fallback=True, character_coverage=0.98, split_digits=True,
                                 normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    path.with_suffix(".vocab").unlink()
    model, special = s.SentencePieceProcessor(str(path)), re.compile("(<unk>|<s>|</s>)")
    return lambda text: ([i for part in special.split(text) if part for i in ([model.piece_to_id(part)] if special.fullmatch(part) else model.encode(part))],
                         model.encode(text))


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent / "data" / "tokenizer")
    out.mkdir(parents=True, exist_ok=True)
    documents = list(texts.small())
    corpus = documents + list(texts.sources(["docs/*.md"], 6))
    with open(out / "documents", "wb") as file:
        for text in documents:
            file.write(b"%d\n%s\n" % (len(text.encode()), text.encode()))
    for name, made in published(corpus, 1000).items():
        (out / f"{name}.json").write_text(json.dumps(json.loads(made.to_str()), ensure_ascii=False, separators=(",", ":")))
        (out / f"{name}.ids").write_text("".join(line(*hf_ids(made, text)) for text in documents))
    ids = sentencepiece(out / "sentencepiece.model", corpus)
    (out / "sentencepiece.ids").write_text("".join(line(*ids(text)) for text in documents))
    tokens = ranks(corpus, 1500)
    write_ranks(out / "tiktoken.ranks", tokens, len(tokens))
    for name in TIKTOKEN:
        made = encoding(name, tokens)
        ready = [form(name, text) for text in documents]
        (out / f"{name}-ranks.ids").write_text("".join(line(made.encode(text, allowed_special="all"), made.encode_ordinary(text)) for text in ready))


if __name__ == "__main__":
    main()
