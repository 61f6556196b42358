#!/usr/bin/env python3
"""Compares Quintet's tokenizers with Hugging Face's `transformers` and `tokenizers` on fuzzed and
multilingual strings.

Builds tokenizer files of every supported kind with those libraries and with `sentencepiece` (no
network), sends the same strings to them and to the program tokenizer_dump, and counts differences
in ids, in ids without special tokens, and in decoded texts. Spans are compared too, and counted
separately.
  tools/tokenizer_oracle.py --dump build/tools/tokenizer_dump --strings 200000 \\
      --out tools/bench/results/tokenizers.json
  tools/tokenizer_oracle.py --fixtures tests/data/tokenizers
      (writes the cases of ctest; --kinds: only some)
  tools/tokenizer_oracle.py --dump build/tools/tokenizer_dump --long-words \\
      --out tools/bench/results/long_words.json
      (times instead of comparing: one word of up to 1 MB; encoding is linear when a word of twice
      the length takes about twice the time)
Needs: tokenizers, sentencepiece, transformers 5, protobuf.
"""

import argparse
import datetime
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import unicodedata

os.environ["HF_HUB_OFFLINE"] = "1"
import sentencepiece as spm
import tokenizers
import transformers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FRENCH = r" ?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MINIPILE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SENTENCES = """The quick brown fox jumps over the lazy dog, and it's 42 o'clock!
translate English to German: The house is wonderful. summarize: studies have shown that owning a \
dog is good for you.
Le café déjà vu, où l'été s'achève; la naïveté coûte 1 234,56 € aujourd'hui. Être ou \
ne pas être, voilà la question.
Die Größe der Straße überrascht Äpfel, Öl und Übermut. Zwölf Boxkämpfer jagen Viktor quer \
über den großen Sylter Deich.
Съешь же ещё этих мягких французских булок, да выпей \
чаю. Широкая электрификация южных губерний.
Ο καιρός είναι καλός σήμερα. Ξεσκεπάζω την ψυχοφθόρα \
βδελυγμία.
שלום עולם, מה שלומך היום? דג סקרן שט בים מאוכזב. مرحبا \
بالعالم، كيف حالك اليوم؟ نص حكيم له سر قاطع.
नमस्ते दुनिया, आप कैसे हैं? ऋषियों को \
सताने वाले दुष्ट। สวัสดีชาวโลก \
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า
你好，世界！今天天气很好。我們都是學生。いろはにほへと \
ちりぬるを。カタカナとひらがな。안녕하세요 세계, 키스의 고유조건은 \
입술끼리 만나야 하고.
Tiếng Việt có nhiều dấu thanh. Příliš žluťoučký kůň úpěl ďábelské ódy. \
Pchnąć w tę łódź jeża lub ośm skrzyń fig.
Pijamalı hasta yağız şoföre çabucak güvendi. ISTANBUL İstanbul ısı. Þjóð æði ǆ ǅ \
ß ﬁ ﬂ ſ K Å
def f(x):\n\treturn {"a": [1, 2, x**2]}  # comment\n\nif __name__ == '__main__':\n    print(f(3))
https://example.com/path?q=a+b&c=%20#frag user@example.org 2024-01-31T23:59:59Z 3.14159 1e-10 \
0xDEADBEEF $1,000.00
""".strip().split("\n")
SNIPPETS = [
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1eb\U0001f1f7",
    "\U0001f44d\U0001f3fd",
    "\u2764\ufe0f",
    "1\ufe0f\u20e3",
    "e\u0301",
    "A\u030a\u0323",
    "\u0061\u0315\u0300\u05ae\u0062",
    "\u1e0b\u0323",
    "\uac00\u11a8",
    "\u1100\u1161\u11a8",
    "\u0915\u094d\u0937\u093f",
    "\u200b",
    "\u200c",
    "\u200d",
    "\u200e",
    "\u202e",
    "\ufeff",
    "\u00ad",
    "\u2060",
    "\u180e",
    "\u0085",
    "\u00a0",
    "\u1680",
    "\u2003",
    "\u2009",
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\v",
    "\f",
    "\0",
    "\x01",
    "\x1c",
    "\x1f",
    "\x7f",
    "\x80",
    "\x9f",
    " ",
    "  ",
    "   ",
    " " * 7,
    "\u2581",
    "\u2581\u2581",
    "\u2581a",
    "\ufffd",
    "\ufffc",
    "\uffff",
    "\U0010ffff",
    "\ue000",
    "\U000e0001",
    "\U0001f1e6",
    "<extra_id_0>",
    "<extra_id_99>",
    "<extra_id_100>",
    "<extra_id_255>",
    "<extra_id_",
    "</s>",
    "<s>",
    "<pad>",
    "<unk>",
    "<|endoftext|>",
    "<mask>",
    "<sep>",
    "<cls>",
    "[R]",
    "[X]",
    "<0x0A>",
    "<0xE2>",
    "<ctrl>",
    "<usr>",
    "user_sym",
    "NEWTOKEN",
    "newtoken",
    "strip_me",
    "word",
    "'s",
    "'S",
    "'t",
    "'re",
    "'VE",
    "'ll",
    "'LL",
    "'d",
    "'\u017f",
    "don't",
    "I'M",
    "...",
    "!!!",
    "?!",
    "\u3002",
    "\uff01",
    "\u00bf",
    "\u201cquoted\u201d",
    "\u2014",
    "\u00b2",
    "\u00bd",
    "\u2460",
    "\u0664\u0665",
    "\u4e00\u4e8c",
    "\u216b",
    "\uff21\uff22\uff11",
    "\ufb01",
    "\u3392",
    "\u33a1",
    "\ufdfa",
    "\u1e9e",
    "\u0130",
    "\u0131",
    "\u03a3\u03c3\u03c2",
    "\u01c5",
    "\u1f88",
    "\u2126",
    "\u212b",
    "\u0344",
    "\u0f73",
    "\u09cb",
    "\u0dde",
    "\U0001d15e",
    "\U0001d400",
    "\U00020000",
    "\U0002f800",
    "\u0300",
    "\u0301\u0301",
    "\u20dd",
    "\u0600",
    "\u0903",
    "\u0e33",
    "\ua960",
    "\ud7b0",
]


def corpus():
    rng = random.Random(7)
    lines = []
    for _ in range(60):
        for sentence in SENTENCES:
            words = sentence.replace("\\n", "\n").replace("\\t", "\t").split(" ")
            rng.shuffle(words)
            lines.append(" ".join(words))
            lines.append(sentence)
    return [line.replace("\n", " ") for line in lines]


def random_code_point(rng):
    kind = rng.random()
    if kind < 0.45:
        return chr(rng.randrange(32, 127))
    if kind < 0.6:
        return chr(rng.randrange(0x80, 0x600))
    if kind < 0.7:
        return chr(rng.randrange(0x300, 0x370))
    if kind < 0.9:
        c = rng.randrange(0x600, 0x10000)
        return chr(c) if not 0xD800 <= c < 0xE000 else "\ufffd"
    if kind < 0.95:
        return chr(rng.randrange(0, 32))
    return chr(rng.randrange(0x10000, 0x110000))


def fuzz_string(rng):
    parts = []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 4, 5, 8, 12])):
        kind = rng.random()
        if kind < 0.35:
            words = rng.choice(SENTENCES).replace("\\n", "\n").replace("\\t", "\t").split(" ")
            at = rng.randrange(len(words))
            parts.append(" ".join(words[at : at + rng.randrange(1, 6)]))
        elif kind < 0.65:
            parts.append(rng.choice(SNIPPETS))
        elif kind < 0.85:
            parts.append("".join(random_code_point(rng) for _ in range(rng.randrange(1, 8))))
        elif kind < 0.9:
            count = rng.randrange(1, 60) if rng.random() < 0.95 else rng.randrange(60, 2000)
            parts.append(
                rng.choice(
                    [
                        "a",
                        "ab",
                        "é",
                        "あ",
                        "!",
                        "0",
                        "\u0301",
                        " ",
                        "\u3000",
                        "the",
                        "</s>",
                        "<extra_id_7>",
                        "<unk> ",
                    ]
                )
                * count
            )
        else:
            parts.append(rng.choice([" ", "  ", "\n", "\t"]))
        if rng.random() < 0.3:
            parts.append(" ")
    text = "".join(parts)
    if rng.random() < 0.2:
        text = unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), text)
    if rng.random() < 0.1:  # invalid UTF-8, as every reader repairs it
        data = bytearray(text.encode())
        for _ in range(rng.randrange(1, 4)):
            data.insert(
                rng.randrange(len(data) + 1),
                rng.choice([0x80, 0xBF, 0xC3, 0xE2, 0xED, 0xF0, 0xFF, 0xF4]),
            )
        text = bytes(data).decode("utf-8", errors="replace")
    return text


# ---- Kinds. Each writes its files into a folder and returns an object with
# encode(text) -> (ids, plain ids, spans or None) and
# decode(ids) -> (text without special tokens, text with them); None where there is no reference.
class HuggingFace:
    def __init__(self, tokenizer, folder, clean_up=False):
        self.tokenizer = tokenizer
        tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)

    def encode(self, text):
        plain = self.tokenizer.encode(text, add_special_tokens=False)
        starts = [0]
        for c in text:
            starts.append(starts[-1] + len(c.encode()))
        spans = [starts[offset] for span in plain.offsets for offset in span]
        return self.tokenizer.encode(text).ids, plain.ids, spans

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True), self.tokenizer.decode(
            ids, skip_special_tokens=False
        )


class Transformers:
    """What transformers loads from a folder. Without a config.json its class must be given."""

    def __init__(self, folder, tokenizer_class=transformers.AutoTokenizer):
        self.tokenizer = tokenizer_class.from_pretrained(folder)

    def encode(self, text):
        ids = self.tokenizer(text)["input_ids"]
        if not self.tokenizer.is_fast:
            return ids, self.tokenizer(text, add_special_tokens=False)["input_ids"], None
        plain = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = [0]
        for c in text:
            starts.append(starts[-1] + len(c.encode()))
        spans = [starts[offset] for span in plain["offset_mapping"] for offset in span]
        return ids, plain["input_ids"], spans

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True), self.tokenizer.decode(
            ids, skip_special_tokens=False
        )


def train_sentencepiece(folder, model_type, **options):
    text = os.path.join(folder, "corpus.txt")
    with open(text, "w") as out:
        out.write("\n".join(corpus()))
    defaults = dict(
        vocab_size=900,
        character_coverage=0.98,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    defaults.update(options)
    spm.SentencePieceTrainer.train(
        input=text, model_prefix=os.path.join(folder, "m"), model_type=model_type, **defaults
    )
    os.rename(os.path.join(folder, "m.model"), os.path.join(folder, "spiece.model"))
    for name in ("m.vocab", "corpus.txt"):
        os.remove(os.path.join(folder, name))


def sentencepiece_kind(model_type, **options):
    def make(folder):
        train_sentencepiece(folder, model_type, **options)
        return Transformers(folder, transformers.T5Tokenizer)

    return make


def declared_kind(make_files, **files):
    """The files of another kind, plus small files that tell transformers how to read them; None
    removes a file."""

    def make(folder):
        make_files(folder)
        for name, content in files.items():
            path = os.path.join(folder, name + ".json")
            if content is None:
                os.remove(path)
                continue
            with open(path, "w") as out:
                json.dump(content, out)
        return Transformers(folder)

    return make


def g2p_kind(*names):
    def make(folder):
        for name in ("config.json",) + names:
            shutil.copy(os.path.join(ROOT, "deploy/models/g2p", name), folder)
        return Transformers(folder)

    return make


def charsmap_and_vocab():
    with tempfile.TemporaryDirectory() as folder:
        train_sentencepiece(folder, "unigram")
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto()
        with open(os.path.join(folder, "spiece.model"), "rb") as data:
            model.ParseFromString(data.read())
    return model.normalizer_spec.precompiled_charsmap, [(p.piece, p.score) for p in model.pieces]


def t5_kind(normalizer=None, pre_tokenizer=None, decoder=None, byte_fallback=False, template=True):
    def make(folder):
        charsmap, vocab = charsmap_and_vocab()
        vocab = vocab + [(f"<extra_id_{i}>", 0.0) for i in range(99, -1, -1)]
        if byte_fallback:
            vocab += [(f"<0x{i:02X}>", -20.0) for i in range(256)]
        tokenizer = Tokenizer(models.Unigram(vocab, 2, byte_fallback))
        tokenizer.normalizer = (
            normalizers.Precompiled(charsmap) if normalizer is None else normalizer(charsmap)
        )
        tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Metaspace()
        tokenizer.decoder = decoder or decoders.Metaspace()
        if template:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=["$A", "</s>"],
                pair=["$A", "</s>", "$B", "</s>"],
                special_tokens=[("</s>", 1)],
            )
        tokenizer.add_special_tokens(
            ["<pad>", "</s>", "<unk>"] + [f"<extra_id_{i}>" for i in range(100)]
        )
        return HuggingFace(tokenizer, folder)

    return make


def t5_old(charsmap):
    return normalizers.Sequence(
        [
            normalizers.Precompiled(charsmap),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "\u2581"),
        ]
    )


def gpt2_kind(**options):
    def make(folder):
        source = os.path.join(ROOT, "tests/data/tokenizers/gpt2")
        tokenizer = Tokenizer(
            models.BPE.from_file(
                os.path.join(source, "vocab.json"), os.path.join(source, "merges.txt")
            )
        )
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=options.get("prefix", False)
        )
        tokenizer.decoder = decoders.ByteLevel()
        if not options.get("files"):
            tokenizer.post_processor = processors.ByteLevel(
                trim_offsets=options.get("trim", False),
                add_prefix_space=options.get("prefix", False),
            )
        tokenizer.add_special_tokens(["<|endoftext|>"])
        if options.get("added"):
            tokenizer.add_tokens(
                [
                    AddedToken("NEWTOKEN", single_word=True),
                    AddedToken("strip_me", lstrip=True, rstrip=True),
                    AddedToken("word", single_word=True, normalized=False),
                ]
            )
        result = HuggingFace(tokenizer, folder)
        if options.get("files"):
            os.remove(os.path.join(folder, "tokenizer.json"))
            for name in ("vocab.json", "merges.txt"):
                shutil.copy(os.path.join(source, name), folder)
        return result

    return make


def bpe_kind(
    model=None,
    trainer=None,
    normalizer=None,
    pre_tokenizer=None,
    decoder=None,
    added=(),
    string_merges=False,
    post=None,
):
    def make(folder):
        tokenizer = Tokenizer(models.BPE(**(model or {})))
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        if decoder:
            tokenizer.decoder = decoder
        specials = ["<cls>", "<s>", "</s>", "<mask>", "<pad>", "<sep>", "<unk>"] + [
            f"<extra_id_{i}>" for i in range(256)
        ]
        options = dict(vocab_size=1200, special_tokens=specials, show_progress=False)
        options.update(trainer or {})
        tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(**options))
        if added:
            tokenizer.add_tokens(list(added))
        if post:
            tokenizer.post_processor = post
        result = HuggingFace(tokenizer, folder)
        if string_merges:
            path = os.path.join(folder, "tokenizer.json")
            with open(path) as data:
                content = json.load(data)
            content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
            with open(path, "w") as out:
                json.dump(content, out, ensure_ascii=False)
            result.tokenizer = Tokenizer.from_file(path)
        return result

    return make


def fat5(regex):
    return dict(
        model=dict(unk_token="<unk>"), pre_tokenizer=pre_tokenizers.Split(Regex(regex), "isolated")
    )


P, N, D = pre_tokenizers, normalizers, decoders
BYTES = [f"<0x{i:02X}>" for i in range(256)]
FALLBACK_DECODER = D.Sequence(
    [D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]
)
SENTINELS = [f"<extra_id_{i}>" for i in range(100)]
T5, GPT2 = {"model_type": "t5"}, {"model_type": "gpt2"}
NAMED = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# The files of google-t5/t5-small, google/mt5-small and google/byt5-small, and the files that
# transformers 4.57 saves for a slow T5Tokenizer.
T5_CONFIG = {
    "model_max_length": 512,
    "extra_ids": 100,
    "additional_special_tokens": SENTINELS,
    "tokenizer_class": "T5Tokenizer",
    **NAMED,
}
T5_MAP = {"additional_special_tokens": SENTINELS, **NAMED}
MT5_CONFIG = {
    "extra_ids": 0,
    "additional_special_tokens": None,
    "tokenizer_class": "T5Tokenizer",
    **NAMED,
}
MT5_MAP = NAMED


def saved_token(content, **flags):
    return {
        "content": content,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
        **flags,
    }


def named_tokens(**flags):
    return {
        name: {"__type": "AddedToken", **saved_token(content, normalized=True, **flags)}
        for name, content in NAMED.items()
    }


SLOW_T5_CONFIG = {
    "add_prefix_space": True,
    "added_tokens_decoder": {
        str(i): saved_token(t) for i, t in enumerate(["<pad>", "</s>", "<unk>"])
    },
    "additional_special_tokens": SENTINELS,
    "clean_up_tokenization_spaces": False,
    "extra_ids": 100,
    "legacy": False,
    "sp_model_kwargs": {},
    "tokenizer_class": "T5Tokenizer",
    **NAMED,
}
BYT5_CONFIG = {
    "extra_ids": 125,
    "additional_special_tokens": [f"<extra_id_{i}>" for i in range(125)],
    "tokenizer_class": "ByT5Tokenizer",
    **named_tokens(lstrip=True, rstrip=True),
}
SPIECE = sentencepiece_kind("unigram")


def without_rules(_):
    return N.Sequence([N.Strip(left=False, right=True), N.Replace(Regex(" {2,}"), "\u2581")])


KINDS = {
    "sp-unigram-nmt_nfkc": sentencepiece_kind("unigram"),
    "sp-unigram-identity-bytes": sentencepiece_kind(
        "unigram", normalization_rule_name="identity", byte_fallback=True, vocab_size=1100
    ),
    "sp-unigram-user-symbols": sentencepiece_kind(
        "unigram",
        user_defined_symbols=["<usr>", "user_sym", "\u2581word", "'s"],
        control_symbols=["<ctrl>"],
    ),
    "sp-unigram-spaces": sentencepiece_kind(
        "unigram", add_dummy_prefix=False, remove_extra_whitespaces=False
    ),
    "sp-unigram-nfkc_cf-suffix": sentencepiece_kind(
        "unigram", normalization_rule_name="nmt_nfkc_cf", treat_whitespace_as_suffix=True
    ),
    "sp-bpe-nmt_nfkc": sentencepiece_kind("bpe"),
    "sp-bpe-identity-bytes": sentencepiece_kind(
        "bpe",
        normalization_rule_name="identity",
        byte_fallback=True,
        vocab_size=1100,
        remove_extra_whitespaces=False,
        user_defined_symbols=["<usr>", "user_sym"],
    ),
    "sp-char": sentencepiece_kind("char", user_defined_symbols=["<usr>", "user_sym", "AE1"]),
    "sp-char-bytes": sentencepiece_kind("char", byte_fallback=True, normalization_rule_name="nfkc"),
    "t5": t5_kind(),
    "t5-old": t5_kind(t5_old, P.Sequence([P.WhitespaceSplit(), P.Metaspace()])),
    "t5-bytes": t5_kind(
        byte_fallback=True,
        decoder=FALLBACK_DECODER,
        pre_tokenizer=P.Metaspace(prepend_scheme="first", split=False),
    ),
    "t5-never": t5_kind(
        lambda c: N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(r"\s+"), " ")]),
        P.Metaspace(prepend_scheme="never"),
        D.Metaspace(prepend_scheme="never"),
        template=False,
    ),
    "t5-lower": t5_kind(
        lambda c: N.Sequence(
            [
                N.NFD(),
                N.Lowercase(),
                N.StripAccents(),
                N.Strip(),
                N.Prepend("\u2581"),
                N.Replace(" ", "\u2581"),
            ]
        ),
        P.Metaspace(prepend_scheme="first"),
    ),
    "gpt2": gpt2_kind(),
    "gpt2-files": gpt2_kind(files=True),
    "gpt2-prefix-added": gpt2_kind(prefix=True, trim=True, added=True),
    "fat5-french": bpe_kind(**fat5(FRENCH)),
    "fat5-minipile": bpe_kind(**fat5(MINIPILE)),
    "bpe-bytes": bpe_kind(
        dict(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
        dict(special_tokens=["<unk>", "<s>", "</s>"] + BYTES),
        N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")]),
        None,
        FALLBACK_DECODER,
        string_merges=True,
        added=[
            AddedToken("NEWTOKEN", normalized=True),
            AddedToken("strip_me", lstrip=True, rstrip=True),
        ],
    ),
    "bpe-word-ends": bpe_kind(
        dict(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
        dict(continuing_subword_prefix="##", end_of_word_suffix="</w>"),
        N.Sequence([N.NFKC(), N.Lowercase()]),
        P.Sequence([P.Whitespace(), P.Digits(True), P.Punctuation("isolated")]),
        D.BPEDecoder("</w>"),
        added=[AddedToken("NEWTOKEN", normalized=True)],
    ),
    "bpe-splits": bpe_kind(
        dict(unk_token="<unk>", fuse_unk=True, ignore_merges=True),
        None,
        N.NFC(),
        P.Sequence(
            [
                P.Split(" ", "merged_with_next"),
                P.Split(Regex(r"\p{P}"), "merged_with_previous"),
                P.Digits(False),
                P.Split(Regex(r"[^\p{L}\p{M}]"), "contiguous"),
                P.Split(Regex(r"\p{Lu}"), "isolated", invert=True),
            ]
        ),
        post=processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    ),
    "bpe-byte-level-split": bpe_kind(
        dict(),
        dict(initial_alphabet=P.ByteLevel.alphabet()),
        N.NFKD(),
        P.Sequence(
            [
                P.Split(Regex(MINIPILE), "isolated"),
                P.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        D.ByteLevel(),
        post=processors.ByteLevel(trim_offsets=True),
    ),
    "byt5": declared_kind(
        lambda folder: None, tokenizer_config={"tokenizer_class": "ByT5Tokenizer"}
    ),
    # What a checkpoint declares decides how transformers reads its files.
    "g2p": g2p_kind("spiece.model"),
    "g2p-json": g2p_kind("spiece.model", "tokenizer.json", "tokenizer_config.json"),
    "t5-spiece": declared_kind(
        SPIECE, config=T5, tokenizer_config=T5_CONFIG, special_tokens_map=T5_MAP
    ),
    "t5-spiece-ten-sentinels": declared_kind(
        SPIECE, config=T5, tokenizer_config={"extra_ids": 10, "clean_up_tokenization_spaces": True}
    ),
    "t5-spiece-extra-tokens": declared_kind(
        SPIECE,
        config=T5,
        tokenizer_config={"additional_special_tokens": ["<ctrl>", "NEWTOKEN"]},
        added_tokens={"strip_me": 611, "word": 612},
    ),
    "t5-spiece-slow": declared_kind(
        SPIECE, config=T5, tokenizer_config=SLOW_T5_CONFIG, special_tokens_map=T5_MAP
    ),
    "t5-spiece-split-special": declared_kind(
        SPIECE, config=T5, tokenizer_config={"split_special_tokens": True}
    ),
    "mt5-spiece": declared_kind(
        sentencepiece_kind(
            "unigram",
            normalization_rule_name="identity",
            user_defined_symbols=["<usr>", "user_sym"],
        ),
        config={"model_type": "mt5"},
        tokenizer_config=MT5_CONFIG,
        special_tokens_map=MT5_MAP,
    ),
    "t5-json": declared_kind(
        t5_kind(), config=T5, tokenizer_config=T5_CONFIG, special_tokens_map=T5_MAP
    ),
    "t5-json-rules": declared_kind(
        t5_kind(t5_old, P.Metaspace(prepend_scheme="first")), tokenizer_config=SLOW_T5_CONFIG
    ),
    "t5-json-not-legacy": declared_kind(
        t5_kind(without_rules, P.Metaspace(prepend_scheme="first")), tokenizer_config=SLOW_T5_CONFIG
    ),
    "t5-json-undeclared": declared_kind(
        t5_kind(
            lambda c: N.Sequence([N.NFKC(), N.Lowercase()]),
            P.Metaspace(prepend_scheme="never"),
            template=False,
        ),
        config=T5,
    ),
    "t5-json-bytes": declared_kind(
        t5_kind(
            byte_fallback=True,
            decoder=FALLBACK_DECODER,
            pre_tokenizer=P.Metaspace(prepend_scheme="first", split=False),
        ),
        config=T5,
        tokenizer_config={"tokenizer_class": "T5TokenizerFast", "add_prefix_space": False},
    ),
    "t5-json-backend": declared_kind(
        t5_kind(t5_old, P.Metaspace(prepend_scheme="first")),
        config=T5,
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": True,
            "eos_token": "</s>",
        },
    ),
    "umt5-json": declared_kind(
        t5_kind(without_rules, P.Metaspace(prepend_scheme="first")),
        config={"model_type": "umt5"},
        tokenizer_config=SLOW_T5_CONFIG,
    ),
    "gpt2-json-prefix": declared_kind(
        gpt2_kind(added=True), config=GPT2, tokenizer_config={"add_prefix_space": True}
    ),
    "gpt2-json-no-prefix": declared_kind(
        gpt2_kind(prefix=True, trim=True), tokenizer_config={"tokenizer_class": "GPT2TokenizerFast"}
    ),
    "gpt2-json-rebuilt": declared_kind(
        bpe_kind(
            dict(),
            dict(initial_alphabet=P.ByteLevel.alphabet()),
            N.NFKC(),
            P.Sequence(
                [
                    P.Split(Regex(MINIPILE), "isolated"),
                    P.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
            D.ByteLevel(),
            post=processors.ByteLevel(trim_offsets=True),
        ),
        config=GPT2,
        tokenizer_config={
            "add_prefix_space": True,
            "add_bos_token": True,
            "pad_token": "<pad>",
            "unk_token": None,
        },
    ),
    "gpt2-json-backend": declared_kind(
        gpt2_kind(),
        config=GPT2,
        tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True},
    ),
    "gpt2-files-prefix": declared_kind(
        gpt2_kind(files=True),
        config=GPT2,
        tokenizer_config={
            "add_prefix_space": True,
            "add_bos_token": True,
            "pad_token": "<pad>",
            "image_token": "<mask>",
        },
    ),
    "byt5-saved": declared_kind(lambda folder: None, config=T5, tokenizer_config=BYT5_CONFIG),
}


def random_ids(rng, size):
    return [rng.randrange(size) for _ in range(rng.randrange(1, 12))]


def compare(kind, folder, reference, dump, texts, rng, vocabulary):
    """Returns counts and the first differences."""
    id_lists = [random_ids(rng, vocabulary) for _ in range(max(1, len(texts) // 10))]
    requests = [json.dumps({"text": t}) for t in texts] + [json.dumps({"ids": i}) for i in id_lists]
    run = subprocess.run(
        [dump, folder], input="\n".join(requests) + "\n", capture_output=True, text=True
    )
    if run.returncode != 0:
        raise SystemExit(f"{kind}: {run.stderr}")
    answers = [json.loads(line) for line in run.stdout.split("\n") if line]
    counts = {"strings": len(texts), "id_lists": len(id_lists), "ids": 0, "decoded": 0, "spans": 0}
    shown = []

    def differ(what, *values):
        counts[what] += 1
        if len(shown) < 4:
            shown.append((what,) + values)

    for text, answer in zip(texts, answers):
        ids, plain, spans = reference.encode(text)
        if (answer["ids"], answer["plain"]) != (ids, plain):
            differ("ids", text, answer["plain"], plain)
            continue
        skip, keep = reference.decode(ids)
        if answer["skip"] != skip or (keep is not None and answer["keep"] != keep):
            differ("decoded", text, answer["skip"], skip, answer["keep"], keep)
        if spans is not None and answer["spans"] != spans:
            counts["spans"] += 1
            if len(shown) < 2:
                shown.append(("spans", text, answer["spans"], spans))
    for ids, answer in zip(id_lists, answers[len(texts) :]):
        skip, keep = reference.decode(ids)
        if answer["skip"] != skip or (keep is not None and answer["keep"] != keep):
            differ("decoded", ids, answer["skip"], skip, answer["keep"], keep)
    return counts, shown


LONG_WORDS = {
    "letter": "a",
    "letters": "thequickbrownfox",
    "accents": "e\u0301\u00fc",
    "ideographs": "\u4f60\u597d",
    "symbols": "!?",
}
LONG_WORD_BYTES = [62_500, 125_000, 250_000, 500_000, 1_000_000]
LONG_WORD_PROCESSES = 9


def time_long_words(kind, folder, dump):
    """Milliseconds of one thread for each word and size, and the largest growth from one size to
    its double.

    Each time is the median of several processes, and each process times only one text: otherwise
    later texts would reuse memory that the kernel has already cleared for earlier ones.
    """
    words = {}
    for word, unit in LONG_WORDS.items():
        words[word] = []
        for size in LONG_WORD_BYTES:
            times = []
            for _ in range(LONG_WORD_PROCESSES):
                run = subprocess.run(
                    [dump, folder],
                    input=json.dumps({"repeat": unit, "bytes": size}) + "\n",
                    capture_output=True,
                    text=True,
                )
                if run.returncode != 0:
                    raise SystemExit(f"{kind}: {run.stderr}")
                times.append(json.loads(run.stdout)["milliseconds"])
            words[word].append(round(statistics.median(times), 3))
    growth = max(after / before for row in words.values() for before, after in zip(row, row[1:]))
    return {"milliseconds": words, "largest_growth_at_twice_the_bytes": round(growth, 2)}


# Small files for the tree: few hold the normalisation rules, and GPT-2's are there already.
FIXTURES = [
    "sp-unigram-nmt_nfkc",
    "sp-unigram-identity-bytes",
    "sp-bpe-identity-bytes",
    "t5",
    "t5-never",
    "t5-lower",
    "gpt2",
    "fat5-french",
    "fat5-minipile",
    "bpe-bytes",
    "bpe-word-ends",
    "bpe-splits",
    "bpe-byte-level-split",
    "byt5",
    "g2p",
    "mt5-spiece",
    "t5-json-not-legacy",
    "t5-json-undeclared",
    "umt5-json",
    "gpt2-json-rebuilt",
]
CASES_OF_A_FIXTURE = 142


def write_fixtures(target, kinds):
    """Writes one folder per kind, with cases.jsonl: {"t": text, "i": ids, "s": decoded without
    special tokens, "k": decoded with them if that differs}."""
    for number, kind in enumerate(FIXTURES):
        if kinds and kind not in kinds:
            continue
        rng = random.Random(4242 + number)
        folder = os.path.join(target, kind)
        os.makedirs(folder, exist_ok=True)
        if kind in ("gpt2", "g2p"):
            with tempfile.TemporaryDirectory() as scratch:
                reference = KINDS[kind](scratch)
        else:
            reference = KINDS[kind](folder)
        with open(os.path.join(folder, "cases.jsonl"), "w") as out:
            for _ in range(CASES_OF_A_FIXTURE):
                text = fuzz_string(rng)
                while len(text) > 120:
                    text = fuzz_string(rng)
                ids = reference.encode(text)[0]
                skip, keep = reference.decode(ids)
                line = {"t": text, "i": ids, "s": skip}
                if keep is not None and keep != skip:
                    line["k"] = keep
                out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def vocabulary_size(reference):
    return (
        reference.tokenizer.get_vocab_size()
        if isinstance(reference, HuggingFace)
        else len(reference.tokenizer)
    )


def cpu_model():
    with open("/proc/cpuinfo") as lines:
        return next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
            "unknown",
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dump")
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--out")
    parser.add_argument("--fixtures")
    parser.add_argument("--long-words", action="store_true")
    options = parser.parse_args()
    kinds = options.kinds.split(",") if options.kinds else []
    if options.fixtures:
        write_fixtures(options.fixtures, kinds)
        return 0
    if not options.dump:
        parser.error("--dump or --fixtures")
    kinds = {k: v for k, v in KINDS.items() if not kinds or k in kinds}
    totals = {"strings": 0, "id_lists": 0, "ids": 0, "decoded": 0, "spans": 0}
    by_kind = {}
    for number, (kind, make) in enumerate(kinds.items()):
        rng = random.Random(options.seed * 1000 + number)
        with tempfile.TemporaryDirectory() as folder:
            reference = make(folder)
            if options.long_words:
                by_kind[kind] = time_long_words(kind, folder, options.dump)
                print(kind, by_kind[kind], flush=True)
                continue
            texts = [fuzz_string(rng) for _ in range(options.strings // len(kinds))]
            counts, shown = compare(
                kind, folder, reference, options.dump, texts, rng, vocabulary_size(reference)
            )
            by_kind[kind] = counts
            for key in totals:
                totals[key] += counts[key]
            print(kind, counts, flush=True)
            for difference in shown:
                print("   ", *[repr(value)[:400] for value in difference], sep="\n      ")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    result = {"date": datetime.date.today().isoformat(), "commit": commit}
    if options.long_words:
        result |= {
            "bytes": LONG_WORD_BYTES,
            "processes": LONG_WORD_PROCESSES,
            "system": f"{platform.system()} {platform.machine()}",
            "cpu": cpu_model(),
        }
    else:
        print(totals)
        result |= {
            "seed": options.seed,
            "tokenizers": tokenizers.__version__,
            "transformers": transformers.__version__,
            "sentencepiece": spm.__version__,
            "mismatches": {
                "ids": totals["ids"],
                "decoded_text": totals["decoded"],
                "spans": totals["spans"],
            },
            "compared": {"strings": totals["strings"], "id_lists": totals["id_lists"]},
        }
    result["kinds"] = by_kind
    if options.out:
        with open(options.out, "w") as out:
            json.dump(result, out, indent=1)
            out.write("\n")
    return 1 if totals["ids"] or totals["decoded"] else 0


if __name__ == "__main__":
    sys.exit(main())
