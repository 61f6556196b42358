// How fast a checkpoint loads, and how much memory that takes at its peak.
//   load_speed DIR [THREADS=2] [f32|bf16|int8]
// Run it twice and read the second line: the first run also reads the disk.
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "models/config.h"
#include "models/safetensors.h"
#include "models/weights.h"

namespace {

// A line of /proc/self/status, in bytes.
int64_t ProcessBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, field.size(), field) == 0) {
      return std::strtoll(line.c_str() + field.size() + 1, nullptr, 10) * 1024;
    }
  }
  return 0;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t StoredBytes(const std::string& directory) {
  const auto files = quintet::SafetensorsReader::Open(directory);
  int64_t bytes = 0;
  if (!files.ok()) return 0;
  for (const quintet::StoredTensor& t : files->tensors()) bytes += t.bytes;
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: load_speed DIR [THREADS] [f32|bf16|int8]\n");
    return 2;
  }
  const std::string directory = argv[1], type = argc > 3 ? argv[3] : "f32";
  quintet::ThreadPool pool(argc > 2 ? std::max(1, std::atoi(argv[2])) : 2);
  const auto weight_type = type == "int8"   ? quintet::WeightType::kI8
                           : type == "bf16" ? quintet::WeightType::kBF16
                                            : quintet::WeightType::kF32;
  const auto stored = static_cast<double>(StoredBytes(directory));
  const auto idle = static_cast<double>(ProcessBytes("VmRSS"));
  const double cpu = CpuSeconds();
  const auto start = std::chrono::steady_clock::now();
  auto config = quintet::ReadModelConfig(directory);
  const auto weights = config.ok() ? quintet::LoadWeights(directory, &*config, weight_type, &pool)
                                   : absl::StatusOr<quintet::ModelWeights>(config.status());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!weights.ok()) {
    std::fprintf(stderr, "%s\n", std::string(weights.status().message()).c_str());
    return 3;
  }
  const auto resident = static_cast<double>(weights->bytes);
  const auto peak = static_cast<double>(ProcessBytes("VmHWM"));
  std::printf("%.1f MB stored, %d threads: %.3f s, %.2f GB/s; %.3f s of CPU, %.2f GB/s a core\n",
              stored / 1e6, pool.threads(), seconds, stored / seconds / 1e9, CpuSeconds() - cpu,
              stored / (CpuSeconds() - cpu) / 1e9);
  std::printf(
      "%.1f MB resident weights; peak %.1f MB, idle %.1f MB: (peak - idle) / weights %.3f\n",
      resident / 1e6, peak / 1e6, idle / 1e6, (peak - idle) / resident);
  return 0;
}
