// Fuzz target: any bytes as a ModelInferRequest of KServe's gRPC protocol. Byte 0 selects the
// model, byte 1 whether the RPC is ModelStreamInfer.
#include "tests/fuzz/served_models.h"
#include "tests/server/kserve/infer_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  if (size < 2) return 0;
  ::inference::ModelInferRequest request;
  if (!request.ParseFromArray(data + 2, static_cast<int>(size - 2))) return 0;
  CheckInfer(request, data[1] % 2 == 1, ServedModel(data[0]));
  return 0;
}
