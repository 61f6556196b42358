// The fastest cuBLASLt algorithm for each GEMM shape, as measured on one kind of device. A file
// keeps the choices between processes (kernels/linear/gemm_choices_file.h).
//
// A choice is an index into the list that the library returns for the shape, not an algorithm
// itself: a forged file can make a GEMM slower, but not wrong.
//
// The file format is ASCII lines: "quintet product choices 1"; the device; one line per shape with
// the ten numbers of its Key and the choice; "end" with the number of shapes and a checksum of all
// bytes before that line.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quintet {

class GemmAlgorithmChoices {
 public:
  static constexpr int kChoices = 8;  // algorithms measured per shape: 0 to 7
  static constexpr size_t kMostShapes = 16384;
  static constexpr int64_t kMostTextBytes = int64_t{4} << 20;

  // The numbers that distinguish GEMMs: rows, n, k; strides of x, residual and y; alignments of x,
  // residual and y; and one number that encodes the dtypes and the epilogue.
  using Key = std::array<int64_t, 10>;

  // Returns the index of the algorithm that is recorded for this GEMM shape, or -1 if none is.
  int Find(const Key& key) const;
  // Records algorithm number `choice` for this GEMM shape, in place of an earlier choice. Once
  // kMostShapes shapes are recorded, does nothing any more, even for a recorded shape.
  void Add(const Key& key, int choice);
  size_t size() const { return choices_.size(); }
  // Whether Add has recorded a choice in this object (Merge does not count). If not, there is
  // nothing new to save to a file.
  bool changed() const { return changed_; }

  // Parses `text`, the contents of a file of choices (format: comment at the top of
  // gemm_choices.h), and adds its choices for shapes that have none yet. Returns OK without adding
  // anything if the file is for another device; DATA_LOSS without adding anything if it is
  // malformed.
  absl::Status Merge(absl::string_view text, absl::string_view device);
  // Returns all choices as the text of a file, which Merge can parse.
  std::string Text(absl::string_view device) const;

 private:
  std::map<Key, int> choices_;
  bool changed_ = false;
};

}  // namespace quintet
