#!/usr/bin/env python3
"""Records random models of every family, and the outputs of transformers for some texts, for
tests/python/model_family_test.py.

Needs torch and transformers (recorded with 5.23.0; longt5 with 5.24.0). Writes each model to
tests/data/families/NAME, with the outputs in record.json. The test copies the tokenizers from
tests/data/tokenizers. Only MADLAD's tokenizer is written to the folder of its model, because its
special tokens have other ids.

    python tools/family_oracle.py [NAME ...]    # the families with these names, or all
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers

SOURCE = pathlib.Path(__file__).resolve().parents[1]
TOKENIZERS = SOURCE / "tests" / "data" / "tokenizers"
TARGET = SOURCE / "tests" / "data" / "families"
TEXTS = [
    "translate English to German: The house is wonderful.",
    "a",
    "Does 3 + 4 equal 7? Answer yes or no.",
    "naïve café, 東京, Москва",
    "the quick brown fox jumps over the lazy dog, and over another one",
]
SMALL = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
GATED = {**SMALL, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
START = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
# name: (configuration, its tokenizer in tests/data/tokenizers)
FAMILIES = {
    "t5": (transformers.T5Config(**SMALL, **START), "umt5-json"),
    "flan-t5": (transformers.T5Config(**GATED, **START), "umt5-json"),
    "mt5": (transformers.MT5Config(**GATED, **START), "mt5-spiece"),
    "umt5": (transformers.UMT5Config(**GATED, **START), "umt5-json"),
    "byt5": (
        transformers.T5Config(**{**GATED, "num_layers": 3, "num_decoder_layers": 1}, **START),
        "byt5",
    ),
    "madlad": (
        transformers.T5Config(
            **GATED, decoder_start_token_id=0, pad_token_id=1, eos_token_id=2, use_cache=True
        ),
        None,
    ),
    "longt5": (
        transformers.LongT5Config(
            **GATED,
            **START,
            encoder_attention_type="transient-global",
            local_radius=4,
            global_block_size=3,
        ),
        "umt5-json",
    ),
    "gpt2": (
        transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128),
        "gpt2-json-rebuilt",
    ),
}
SEARCHES = [
    {"max_new_tokens": 24},
    {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 16, "length_penalty": 0.8},
    {"num_beams": 3, "early_stopping": True, "no_repeat_ngram_size": 2, "max_new_tokens": 16},
    {"repetition_penalty": 1.4, "min_new_tokens": 6, "max_new_tokens": 12},
]


def madlad_tokenizer(folder: pathlib.Path) -> None:
    """Writes a tokenizer with MADLAD's special tokens: <unk> 0, <s> 1, </s> 2."""
    pieces = json.loads((TOKENIZERS / "umt5-json" / "tokenizer.json").read_text())["model"]["vocab"]
    plain = [(piece, score) for piece, score in pieces[3:] if not piece.startswith("<extra_id")]
    transformers.T5Tokenizer(
        vocab=[("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("<2de>", 0.0), *plain],
        unk_token="<unk>",
        pad_token="<s>",
        eos_token="</s>",
        extra_ids=0,
        additional_special_tokens=[],
    ).save_pretrained(folder)


def random_model(config, vocab: int):
    torch.manual_seed(11)
    config.vocab_size = vocab
    if config.model_type == "gpt2":
        config.bos_token_id = config.eos_token_id = vocab - 1
        model = transformers.GPT2LMHeadModel(config)
    else:
        kinds = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5", "longt5": "LongT5"}
        kind = kinds[config.model_type]
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    with torch.no_grad():  # so that the best token stands out, and texts differ
        for name, value in model.named_parameters():
            if value.ndim == 2:
                value.mul_(1.5 if "shared" in name or "wte" in name else 2.0)
    return model.eval()


def target_log_probs(model, ids, target: list[int]) -> list[float]:
    """Log-probabilities of a target's tokens, computed one token at a time with the cache."""
    causal = model.config.model_type == "gpt2"
    given = ids if causal else torch.tensor([[model.config.decoder_start_token_id]])
    encoded = None if causal else model.get_encoder()(input_ids=ids)
    cache, values = None, []
    for token in target:
        inputs = {"input_ids": given} if causal else {"decoder_input_ids": given}
        if not causal:
            inputs["encoder_outputs"] = encoded
        output = model(**inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        values.append(output.logits[0, -1].double().log_softmax(-1)[token].item())
        given = torch.tensor([[token]])
    return values


def record(model, tokenizer) -> dict:
    causal = model.config.model_type == "gpt2"
    results = {"transformers": transformers.__version__, "texts": []}
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        entry = {"text": text, "ids": ids[0].tolist(), "searches": []}
        for options in SEARCHES:
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                return_dict_in_generate=True,
                output_scores=True,
                do_sample=False,
                **options,
            )
            start = ids.shape[1] if causal else 1
            rows = [row[start:].tolist() for row in output.sequences]
            entry["searches"].append(
                {
                    "ids": rows,
                    "texts": tokenizer.batch_decode(rows, skip_special_tokens=True),
                    "scores": output.sequences_scores.tolist() if "num_beams" in options else None,
                }
            )
        target = entry["searches"][0]["ids"][0][:8]
        entry["target"] = {"ids": target, "log_probs": target_log_probs(model, ids, target)}
        if not causal:
            states = model.get_encoder()(input_ids=ids).last_hidden_state[0]
            entry["mean"] = states.mean(0).tolist()
        results["texts"].append(entry)
    return {**results, "searches": SEARCHES}


def main() -> None:
    for name in sys.argv[1:] or FAMILIES:
        config, kind = FAMILIES[name]
        folder = TARGET / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if kind is None:
            madlad_tokenizer(folder)
        with tempfile.TemporaryDirectory() as whole:
            source = folder if kind is None else TOKENIZERS / kind
            for file in source.iterdir():
                if file.name not in ("cases.jsonl", "config.json"):
                    shutil.copy(file, whole)
            vocab = 384
            if name != "byt5":
                vocab = len(transformers.AutoTokenizer.from_pretrained(source))
            model = random_model(config, vocab)
            model.save_pretrained(whole)
            # Loads the tokenizer as a user would.
            tokenizer = transformers.AutoTokenizer.from_pretrained(whole)
            model = type(model).from_pretrained(whole, dtype=torch.float32).eval()
            with torch.inference_mode():
                results = record(model, tokenizer)
            for file in ("config.json", "generation_config.json", "model.safetensors"):
                shutil.copy(pathlib.Path(whole, file), folder)
        results["tokenizer"] = kind
        text = json.dumps(results, ensure_ascii=False, separators=(",", ":"))
        (folder / "record.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {results['texts'][0]['searches'][0]['texts'][0]!r}")


if __name__ == "__main__":
    main()
