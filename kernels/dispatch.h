// The one place where an op learns on which backend it runs. Each op's public function checks its
// shapes, then comes here.
#pragma once

#include "kernels/check.h"
#include "kernels/stream.h"

namespace quintet {

template <typename Args>
void Dispatch(const Args& args, Stream& stream, void (*on_cpu)(const Args&, Stream&)) {
  QT_CHECK(stream.backend() == Backend::kCpu);
  on_cpu(args, stream);
}

}  // namespace quintet
