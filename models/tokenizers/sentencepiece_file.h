// The fields of a SentencePiece model file (sentencepiece_model.proto) that Quintet reads.
//
// The file is a protocol buffer and is read without libprotobuf: static variables of that library
// are unique symbols, which the dynamic linker shares among all copies of the library in a process.
// A process that has loaded another release, for example as a part of grpcio-tools, would crash
// when the Python extension loads its own copy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quintet {

// As numbered in the file.
enum PieceType : int32_t {
  kNormalPiece = 1,
  kUnknownPiece,
  kControlPiece,
  kUserDefinedPiece,
  kUnusedPiece,
  kBytePiece,
};

// The views point into the bytes of the file. No value has been checked.
struct SentencePieceFile {
  struct Piece {
    std::string_view piece;
    float score = 0;
    int32_t type = kNormalPiece;  // a PieceType
  };
  std::vector<Piece> pieces;
  int32_t model_type = 1;      // trainer_spec.model_type: 1 unigram, 2 BPE, 3 word, 4 char
  bool byte_fallback = false;  // trainer_spec.byte_fallback
  // Fields of normalizer_spec; whitespace_as_suffix is trainer_spec.treat_whitespace_as_suffix.
  std::string_view charsmap;  // precompiled_charsmap
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool whitespace_as_suffix = false;
};

// Reads the content of a file. Unknown fields are skipped; of a field that occurs several times the
// last one counts. Returns nullopt if the bytes are not a protocol buffer.
std::optional<SentencePieceFile> ReadSentencePieceFile(std::string_view bytes);
// Returns file content for which ReadSentencePieceFile returns a struct equal to `file`.
std::string WriteSentencePieceFile(const SentencePieceFile& file);

}  // namespace quintet
