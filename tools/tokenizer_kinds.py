"""KINDS: tokenizers of every kind that Quintet supports, made with the reference libraries. Used by
tokenizer_oracle.py.
"""

import json
import os
import shutil
import tempfile

import sentencepiece as spm
import transformers
from tokenizer_texts import corpus
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


# ---- Kinds. Each function writes the files of a tokenizer into a folder and returns an object
# with encode(text) -> (ids, ids without special tokens, spans or None) and
# decode(ids) -> (text without special tokens, text with them). None means: no reference.
def byte_spans(text, offsets):
    """Converts pairs of offsets in characters of `text` to a flat list of offsets in bytes."""
    starts = [0]
    for c in text:
        starts.append(starts[-1] + len(c.encode()))
    return [starts[offset] for span in offsets for offset in span]


class Reference:
    """Base class of references whose member `tokenizer` is an object of a Hugging Face library."""

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True), self.tokenizer.decode(
            ids, skip_special_tokens=False
        )


class HuggingFace(Reference):
    def __init__(self, tokenizer, folder, clean_up=False):
        self.tokenizer = tokenizer
        tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)

    def encode(self, text):
        plain = self.tokenizer.encode(text, add_special_tokens=False)
        return self.tokenizer.encode(text).ids, plain.ids, byte_spans(text, plain.offsets)


class Transformers(Reference):
    """The tokenizer that transformers loads from a folder. If the folder has no config.json,
    `tokenizer_class` must be given."""

    def __init__(self, folder, tokenizer_class=transformers.AutoTokenizer):
        self.tokenizer = tokenizer_class.from_pretrained(folder)

    def encode(self, text):
        ids = self.tokenizer(text)["input_ids"]
        if not self.tokenizer.is_fast:
            return ids, self.tokenizer(text, add_special_tokens=False)["input_ids"], None
        plain = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return ids, plain["input_ids"], byte_spans(text, plain["offset_mapping"])


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
    """Returns a kind that has the files of another kind and some small JSON files, which tell
    transformers how to read them. `files`: {name without .json: content; None removes the file}."""

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
# Configurations as in google-t5/t5-small, google/mt5-small and google/byt5-small, and as
# transformers 4.57 saves them for a slow T5Tokenizer.
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


def byte_level_split_kind(normalizer):
    """Returns a kind of BPE over bytes that splits texts with the expression MINIPILE."""
    return bpe_kind(
        dict(),
        dict(initial_alphabet=P.ByteLevel.alphabet()),
        normalizer,
        P.Sequence(
            [
                P.Split(Regex(MINIPILE), "isolated"),
                P.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        D.ByteLevel(),
        post=processors.ByteLevel(trim_offsets=True),
    )


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
    "bpe-byte-level-split": byte_level_split_kind(N.NFKD()),
    "byt5": declared_kind(
        lambda folder: None, tokenizer_config={"tokenizer_class": "ByT5Tokenizer"}
    ),
    # In the following kinds, the configuration files determine how transformers reads the tokenizer
    # files.
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
        byte_level_split_kind(N.NFKC()),
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
