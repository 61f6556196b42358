#!/usr/bin/env python3
"""Writes models/tokenizers/unicode_tables.cc: the properties of Unicode characters that Hugging
Face's tokenizers library uses.

Each part of that library implements its own version of Unicode. Therefore this script queries the
library itself, code point by code point, instead of reading the data files of one Unicode version.
There is one exception: grapheme cluster properties, which the library hardly exposes, are taken
from the `regex` package. Marks that the library does not join to the letter before them, because
its Unicode version is older, get no such property. Needs: tokenizers, regex.
Usage: tools/make_unicode_tables.py > models/tokenizers/unicode_tables.cc
"""

import base64
import struct
import sys

import regex
from tokenizers import Regex
from tokenizers import normalizers as nm
from tokenizers import pre_tokenizers as pt

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(map(chr, CODE_POINTS))
CATEGORIES = (
    "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co"
).split()
# Grapheme cluster break properties, in the order of enum GraphemeBreak in unicode.h.
BREAKS = (
    "Other CR LF Control Extend ZWJ Regional_Indicator Prepend SpacingMark L V T LV LVT"
).split()


def matched(pattern):
    found = pt.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(ALL)
    return {ord(c) for piece, _ in found for c in piece}


def pieces_of(pre_tokenizer):
    return {ord(c) for piece, _ in pre_tokenizer.pre_tokenize_str(ALL) for c in piece}


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def runs(value_of):
    """Encodes value_of(code point) for all code points: for each run of equal values (delta from
    the previous run's start, value). Surrogates have value 0."""
    out, last_start, last = b"", 0, 0
    for c in range(0x110000):
        value = 0 if 0xD800 <= c < 0xE000 else value_of(c)
        if value != last:
            out += varint(c - last_start) + varint(value)
            last_start, last = c, value
    return out


def mappings(table):
    """Encodes a mapping of code points to texts: for each code point (delta from the previous one,
    length of the text, code points of the text)."""
    out, last = b"", 0
    for c in sorted(table):
        out += varint(c - last) + varint(len(table[c])) + b"".join(varint(ord(x)) for x in table[c])
        last = c
    return out


def changed_by(normalizer, extra=()):
    return {c: t for c in CODE_POINTS if (t := normalizer.normalize_str(chr(c))) != chr(c)}


def combining_classes():
    nfd = nm.NFD()
    # {combining class: one mark of that class}, in ascending order. NFD swaps two adjacent marks
    # exactly when the class of the second one is lower. Comparing any other mark with these marks
    # therefore gives its class.
    marks = {
        1: 0x334,
        6: 0x16FF0,
        7: 0x93C,
        8: 0x3099,
        9: 0x94D,
        10: 0x5B0,
        11: 0x5B1,
        12: 0x5B2,
        13: 0x5B3,
        14: 0x5B4,
        15: 0x5B5,
        16: 0x5B6,
        17: 0x5B7,
        18: 0x5B8,
        19: 0x5B9,
        20: 0x5BB,
        21: 0x5BC,
        22: 0x5BD,
        23: 0x5BF,
        24: 0x5C1,
        25: 0x5C2,
        26: 0xFB1E,
        27: 0x64B,
        28: 0x64C,
        29: 0x64D,
        30: 0x64E,
        31: 0x64F,
        32: 0x650,
        33: 0x651,
        34: 0x652,
        35: 0x670,
        36: 0x711,
        84: 0xC55,
        91: 0xC56,
        103: 0xE38,
        107: 0xE48,
        118: 0xEB8,
        122: 0xEC8,
        129: 0xF71,
        130: 0xF72,
        132: 0xF74,
        202: 0x321,
        214: 0x1DCE,
        216: 0x31B,
        218: 0x302A,
        220: 0x316,
        222: 0x59A,
        224: 0x302E,
        226: 0x1D16D,
        228: 0x5AE,
        230: 0x300,
        232: 0x315,
        233: 0x35C,
        234: 0x35D,
        240: 0x345,
    }
    known = {m: k for k, m in marks.items()}

    def swaps(first, second):
        text = "a" + chr(first) + chr(second)
        return nfd.normalize_str(text) == "a" + chr(second) + chr(first)

    result = {}
    for c in CODE_POINTS:
        if c in known:
            result[c] = known[c]
        elif len(nfd.normalize_str(chr(c))) == 1 and swaps(0x345, c):
            result[c] = next(k for k in sorted(marks, reverse=True) if not swaps(marks[k], c))
        elif len(nfd.normalize_str(chr(c))) == 1 and swaps(c, 0x334):
            result[c] = 240
    return result


def joins_letter_before():
    """Returns the code points that do not start a new grapheme cluster after a letter. Found with a
    normalizer that maps only "a" to "X": it replaces the whole cluster that starts with "a"."""
    units = [0] * 512
    units[0] = 256 << 10
    units[256 ^ ord("a")] = ord("a") | 1 << 8 | 1 << 10
    units[256 ^ ord("a") ^ 1] = 1 << 31
    blob = struct.pack("<I512I", len(units) * 4, *units) + b"X\0"
    precompiled = nm.Precompiled(blob)
    return {c for c in CODE_POINTS if precompiled.normalize_str("a" + chr(c)) == "X"}


def compositions(decomposed):
    """Returns {(first, second): composite} of canonical composition. Hangul is left out, because
    its composition is computed."""
    nfc, nfd = nm.NFC(), nm.NFD()
    pairs = {}
    for c, text in decomposed.items():
        if 0xAC00 <= c < 0xD7A4 or nfc.normalize_str(chr(c)) != chr(c):
            continue
        # `text` is the full decomposition of c. The first element of the pair is the composition of
        # all code points of `text` except the last; the second element is the last code point.
        first = nfc.normalize_str(text[:-1])
        if len(first) == 1 and nfc.normalize_str(first + text[-1]) == chr(c):
            pairs[(ord(first), ord(text[-1]))] = c
        else:
            sys.stderr.write(f"no pair for U+{c:04X}\n")
    return pairs


def emit(name, comment, data):
    print(f"// {comment}")
    print(f"const char {name}[] =")
    text = base64.b64encode(data).decode()
    lines = [text[i : i + 116] for i in range(0, len(text), 116)]
    print("\n".join(f'    "{line}"' for line in lines) + ";\n")


def main():
    categories = {}
    for number, name in enumerate(CATEGORIES[1:], 1):
        for c in matched(r"\p{%s}+" % name):
            categories[c] = number
    sets = [
        matched(r"\s+"),  # White_Space
        {ord(c) for c in ALL if len(pt.Whitespace().pre_tokenize_str("a" + c)) == 1}
        - matched(r"\s+"),  # \w
        {
            c
            for c in CODE_POINTS
            if len(pt.Digits(individual_digits=True).pre_tokenize_str("a" + chr(c) + "a")) == 3
        },
        {
            c
            for c in CODE_POINTS
            if len(pt.Punctuation("isolated").pre_tokenize_str("a" + chr(c) + "a")) == 3
        },
        {c for c in CODE_POINTS if nm.StripAccents().normalize_str("a" + chr(c)) == "a"},
    ]
    flags = {}
    for bit, members in enumerate(sets):
        for c in members:
            flags[c] = flags.get(c, 0) | 1 << bit
    breaks = {}
    for number, name in enumerate(BREAKS[1:], 1):
        for text in regex.findall(r"\p{GCB=%s}" % name, ALL):
            breaks[ord(text)] = number
    for text in regex.findall(r"\p{Extended_Pictographic}", ALL):
        breaks[ord(text)] = breaks.get(ord(text), 0) | 16
    for number, name in ((32, "Consonant"), (64, "Linker"), (96, "Extend")):
        for text in regex.findall(r"\p{InCB=%s}" % name, ALL):
            breaks[ord(text)] = breaks.get(ord(text), 0) | number
    joins = joins_letter_before()
    for c, value in list(breaks.items()):
        if BREAKS[value & 15] in ("Extend", "ZWJ", "SpacingMark") and c not in joins:
            del breaks[c]
    for c in joins:
        if BREAKS[breaks.get(c, 0) & 15] not in ("Extend", "ZWJ", "SpacingMark"):
            sys.stderr.write(f"U+{c:04X} joins, against its property\n")
    hangul = range(0xAC00, 0xD7A4)
    nfd = {c: t for c, t in changed_by(nm.NFD()).items() if c not in hangul}
    nfkd = {c: t for c, t in changed_by(nm.NFKD()).items() if c not in hangul and t != nfd.get(c)}
    pairs = compositions(nfd)
    packed_pairs, last = b"", 0
    for (first, second), composite in sorted(pairs.items()):
        packed_pairs += varint(first - last) + varint(second) + varint(composite)
        last = first
    classes = combining_classes()

    print(
        "// tools/make_unicode_tables.py writes this file; do not edit it. unicode.cc unpacks "
        "the tables."
    )
    print('#include "models/tokenizers/unicode_tables.h"\n')
    print("// clang-format off\nnamespace quintet {\n")
    emit(
        "kCategoryRuns",
        "Runs of code points with the same general category.",
        runs(lambda c: categories.get(c, 0)),
    )
    emit(
        "kFlagRuns",
        "Runs of code points with equal flags: "
        "white space 1, word 2, number 4, punctuation 8, accent 16.",
        runs(lambda c: flags.get(c, 0)),
    )
    emit(
        "kGraphemeRuns",
        "Runs of code points with equal sum of: "
        "cluster break, 16 if pictographic, 32 * conjunct break.",
        runs(lambda c: breaks.get(c, 0)),
    )
    emit(
        "kCombiningRuns",
        "Runs of code points with the same canonical combining class.",
        runs(lambda c: classes.get(c, 0)),
    )
    emit(
        "kCanonicalMappings",
        "NFD of each code point that NFD changes, except Hangul syllables.",
        mappings(nfd),
    )
    emit(
        "kCompatibilityMappings",
        "NFKD of each code point whose NFKD is not its NFD, except Hangul syllables.",
        mappings(nfkd),
    )
    emit(
        "kLowercaseMappings",
        "Lower-case form of each code point that lower-casing changes.",
        mappings(changed_by(nm.Lowercase())),
    )
    emit(
        "kCompositions",
        "Canonical compositions: first code point minus that of the entry before, second one, "
        "composite.",
        packed_pairs,
    )
    print("}  // namespace quintet")


if __name__ == "__main__":
    main()
