// Which of a library's ways to multiply is the quickest, by shape, as measured on one kind of
// device; between processes the choices are kept as a text, in a file (engine/product_cache.h).
//
// A choice is a number in the list that the library gives for the shape, no data of its own: a text
// of anyone's making can make a product slower, but not wrong.
//
// The text is ASCII lines: "quintet product choices 1"; the device; for each shape its ten numbers
// and the choice; "end" with the number of shapes and a checksum of all bytes before that line.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quintet {

class ProductChoices {
 public:
  static constexpr int kChoices = 8;  // of a shape that are measured: 0 .. 7
  static constexpr size_t kMostShapes = 16384;
  static constexpr int64_t kMostTextBytes = int64_t{4} << 20;

  // All that tells one product from another: rows, n, k, strides of x, residual and y, alignment of
  // x, residual and y, types with the epilogue.
  using Key = std::array<int64_t, 10>;

  // -1: nothing is known of the shape.
  int Find(const Key& key) const;
  // Ignored once there are kMostShapes.
  void Add(const Key& key, int choice);
  size_t size() const { return choices_.size(); }
  // Something was added that no text had.
  bool changed() const { return changed_; }

  // Takes what a text has that is not known yet. OK, and nothing is taken, where it is of another
  // device; DATA_LOSS, and nothing is taken, where it is not what Text writes.
  absl::Status Merge(absl::string_view text, absl::string_view device);
  std::string Text(absl::string_view device) const;

 private:
  std::map<Key, int> choices_;
  bool changed_ = false;
};

}  // namespace quintet
