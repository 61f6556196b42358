"""Makes the input of jobs.py: model directories with a tokenizer and random weights, and lines of
text for these models. Needs torch, transformers and tokenizers.

A real checkpoint's outputs have different lengths, so rows leave the batch and others join it. A
model with transformers' random initialisation would repeat one token for ever. Therefore:
- the second half of every feed-forward layer mirrors the first, which makes the layer linear:
  otherwise the positive outputs of ReLU would drive all hidden states towards one vector;
- the last feed-forward layer of the decoder is scaled up and the cross-attention down: the next
  token is then a random function of the previous token, with some influence of the input;
- the eos row of the output embedding is scaled so that one generated token in 20 to 30 is eos.

usage: job_models.py NAME... --work DIR
"""

import pathlib
import random

from peers import GPT2_SIZES, T5_SIZES, t5_sizes
from runs import flag_parser

PIECES = 32_000
SHAPES = {  # name: fields of T5Config or GPT2Config
    "translation": t5_sizes(d_model=256, d_ff=1024, layers=4, heads=4),
    "t5-small": T5_SIZES["t5-small"],
    "classifier": T5_SIZES["t5-small"],
    "t5-base": T5_SIZES["t5-base"],
    "flan-t5-xl": T5_SIZES["flan-t5-xl"],
    "gpt2": GPT2_SIZES,
}
CROSS_SCALE, LAST_SCALE, EOS_SCALE = 0.1, 100.0, 3.0


def pieces_of(name: str) -> int:
    return 6_000 if name == "translation" else PIECES


def words(count: int) -> list[str]:
    """Returns `count` different pronounceable words, the same ones at every call."""
    chance = random.Random(7)
    syllables = [c + v for c in "bcdfghklmnprstvz" for v in ("a", "e", "i", "o", "u", "an", "el")]
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(chance.choices(syllables, k=chance.randint(1, 4)))] = None
    return list(found)


def lines(name: str, count: int, shortest: int, longest: int, seed: int = 1) -> list[str]:
    """Returns `count` lines of `shortest` to `longest` random words. As in a language, the
    frequency of a word falls with its rank."""
    chance = random.Random(seed)
    vocabulary = words(pieces_of(name) - 300)
    weights = [1 / (rank + 10) for rank in range(len(vocabulary))]
    cumulative = []
    for weight in weights:
        cumulative.append(weight + (cumulative[-1] if cumulative else 0))
    return [
        " ".join(
            chance.choices(vocabulary, cum_weights=cumulative, k=chance.randint(shortest, longest))
        )
        for _ in range(count)
    ]


def save_tokenizer(name: str, directory: pathlib.Path):
    """Writes a Unigram tokenizer like T5's: one piece for each word, and pieces of single letters
    for other words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = [chr(code) for code in range(33, 127)]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    vocabulary += [(letter, -12.0) for letter in letters]
    room = pieces_of(name) - len(vocabulary)
    vocabulary += [
        (f"▁{word}", -5.0 - 0.0001 * rank)
        for rank, word in enumerate(words(pieces_of(name) - 300)[:room])
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    if name != "gpt2":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
        )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(directory)


def mirror(first, second):
    """Makes second(relu(first(x))) linear in x, because relu(z) - relu(-z) = z. This also works
    with gelu. A gated layer becomes a product of two linear functions, which has values of both
    signs, too."""
    half = first.shape[0] // 2
    first[half:] = -first[:half]
    second[:, half:] = -second[:, :half]


def scale_embeddings(embeddings, name: str):
    """Draws the output embeddings from N(0, 1), so that logits have standard deviation 1: the final
    hidden states have norm 1 by T5's scaling or by the ln_f that build() sets for GPT-2. Scales the
    eos row. Ids without a piece get zeros, so that they are never generated."""
    embeddings.normal_(0, 1)
    embeddings[1] *= EOS_SCALE
    embeddings[pieces_of(name) :] = 0


def build(name: str):
    import torch
    import transformers

    torch.manual_seed(1)
    vocabulary = -(-pieces_of(name) // 128) * 128
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"), torch.no_grad():
        if name == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=vocabulary, bos_token_id=1, eos_token_id=1, **SHAPES[name]
            )
            model = transformers.GPT2LMHeadModel(config)
            width = config.n_embd
            for block in model.transformer.h:
                mirror(block.mlp.c_fc.weight.T, block.mlp.c_proj.weight.T)
            block.mlp.c_proj.weight.mul_(LAST_SCALE)
            scale_embeddings(model.transformer.wte.weight, name)
            model.transformer.ln_f.weight.fill_(width**-0.5)
            return model.cpu().eval()
        config = transformers.T5Config(
            vocab_size=vocabulary, decoder_start_token_id=0, num_labels=5, **SHAPES[name]
        )
        if name == "classifier":
            model = transformers.T5ForSequenceClassification(config)
            return model.cpu().eval()
        model = transformers.T5ForConditionalGeneration(config)
        for stack in (model.encoder, model.decoder):
            for block in stack.block:
                dense = block.layer[-1].DenseReluDense
                first = dense.wi if hasattr(dense, "wi") else dense.wi_0
                mirror(first.weight, dense.wo.weight)
                if stack is model.decoder:
                    block.layer[1].EncDecAttention.o.weight.mul_(CROSS_SCALE)
        dense.wo.weight.mul_(LAST_SCALE)
        scale_embeddings(model.shared.weight, name)
        if name == "flan-t5-xl":
            model = model.bfloat16()
        return model.cpu().eval()


def prepare(name: str, work: pathlib.Path) -> pathlib.Path:
    """Returns work/NAME, made if absent."""
    directory = work / name
    if not (directory / "tokenizer.json").exists():
        build(name).save_pretrained(directory)
        save_tokenizer(name, directory)
    return directory


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("names", nargs="+", choices=list(SHAPES))
    parser.add_argument("--work", type=pathlib.Path, required=True)
    args = parser.parse_args()
    for name in args.names:
        print(prepare(name, args.work))


if __name__ == "__main__":
    main()
