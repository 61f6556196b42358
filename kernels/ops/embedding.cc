#include "kernels/ops/embedding.h"

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {
namespace {

void CheckTable(const Tensor& table, int64_t d) {
  QT_CHECK(table.dtype == DType::kF32 || table.dtype == DType::kBF16 || table.dtype == DType::kF16);
  QT_CHECK_EQ(table.rank, 2);
  QT_CHECK_EQ(table.dim[1], d);
  QT_CHECK_EQ(table.stride[1], 1);
}

// Checks the indices `numbers` [rows]. Each must be in [0, table_rows), a row of the table, or in
// [-next_tokens, 0), which stands for an element of EmbeddingArgs::next_tokens.
void CheckRowNumbers(const Tensor& numbers, int64_t rows, int64_t table_rows, int64_t next_tokens) {
  QT_CHECK(numbers.dtype == DType::kI32);
  QT_CHECK_EQ(numbers.rank, 1);
  QT_CHECK_EQ(numbers.dim[0], rows);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t number = numbers.as<int32_t>()[r * numbers.stride[0]];
    QT_CHECK_GE(number, -next_tokens);
    QT_CHECK_LT(number, table_rows);
  }
}

}  // namespace

void Embedding(const EmbeddingArgs& args, Stream& stream) {
  QT_CHECK(IsActivation(args.y.dtype, stream));
  QT_CHECK_EQ(args.y.rank, 2);
  QT_CHECK_EQ(args.y.stride[1], 1);
  CheckTable(args.table, args.y.dim[1]);
  const int64_t next_tokens = args.next_tokens.defined() ? args.next_tokens.dim[0] : 0;
  CheckRowNumbers(args.ids, args.y.dim[0], args.table.dim[0], next_tokens);
  QT_CHECK_EQ(args.positions.defined(), args.position_table.defined());
  if (args.positions.defined()) {
    CheckTable(args.position_table, args.y.dim[1]);
    QT_CHECK(stream.backend() == Backend::kCpu || args.position_table.dtype == args.table.dtype);
    CheckRowNumbers(args.positions, args.y.dim[0], args.position_table.dim[0], 0);
  }
  if (args.history.defined()) {
    QT_CHECK(args.history.dtype == DType::kI32 && args.history.is_dense());
    QT_CHECK_EQ(static_cast<int64_t>(args.slots.size()), args.y.dim[0]);
    for (const int32_t slot : args.slots) QT_CHECK_LT(slot, args.history.elements());
  }
  Dispatch<cpu::Embedding, cuda::Embedding>(stream, args);
}

}  // namespace quintet
