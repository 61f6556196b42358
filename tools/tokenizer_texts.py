"""Texts on which tokenizers are compared: sentences in many languages, snippets that are hard to
tokenize, and random mixtures of both. Used by tokenizer_kinds.py and tokenizer_oracle.py.
"""

import random
import unicodedata

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
