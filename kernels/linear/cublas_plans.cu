#include "kernels/linear/cublas_plans.cuh"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/linear/gemm_rows.h"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {
namespace {

// Returns the largest power of two up to 256 that divides the address and the row stride in bytes.
int Alignment(const Tensor& t) {
  if (!t.defined()) return 256;
  const uint64_t bits = reinterpret_cast<uintptr_t>(t.data) |
                        static_cast<uint64_t>(t.stride[0] * DTypeBytes(t.dtype)) | 256u;
  return static_cast<int>(bits & (~bits + 1));
}

cudaDataType_t CudaType(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

// Number of columns that cuBLASLt computes: n rounded up to a multiple of eight. It is n itself if
// W or y has no room for the extra columns, or if there is a bias or a residual. With an odd n (the
// vocabulary of GPT-2), cuBLASLt would use kernels that are several times slower: 131 us instead of
// 27 us for 128 rows. W is padded with rows of zeros (linear.cc); y has room if its row stride is
// large enough.
int64_t EvenColumns(const Gemm& p) {
  const int64_t even = (p.w->n() + 7) / 8 * 8;
  const bool there = p.w->bytes() >= even * p.w->k() * DTypeBytes(p.x.dtype);
  const bool plain = !p.bias.defined() && !p.residual.defined();
  return there && plain && p.y.stride[0] >= even ? even : p.w->n();
}

// The cuBLASLt epilogue for this GEMM.
cublasLtEpilogue_t EpilogueOf(const Gemm& p) {
  const bool bias = p.bias.defined();
  switch (p.activation) {
    case Activation::kRelu:
      return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::kGeluTanh:
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default:
      QT_CHECK(p.activation == Activation::kNone);
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

}  // namespace

CublasLtPlans::CublasLtPlans(int ordinal)
    : lt_(CublasLt::Get()), prepare_([this, ordinal] { Prepare(ordinal); }) {}

// The first request for an algorithm makes cuBLASLt initialize itself: request one for any GEMM.
void CublasLtPlans::Prepare(int ordinal) {
  cudaSetDevice(ordinal);
  status_ = lt_->Create(&handle_);
  if (status_ != CUBLAS_STATUS_SUCCESS) return;
  Plan plan;
  constexpr uint64_t kSize = 256;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const auto layout = [&](cublasLtMatrixLayout_t* made) {
    return lt_->MatrixLayoutCreate(made, CUDA_R_16BF, kSize, kSize, kSize) == CUBLAS_STATUS_SUCCESS;
  };
  const bool described = lt_->MatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
                             CUBLAS_STATUS_SUCCESS &&
                         layout(&plan.a) && layout(&plan.b) && layout(&plan.c) && layout(&plan.d) &&
                         lt_->MatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS;
  if (described) {
    lt_->MatmulAlgoGetHeuristic(handle_, plan.operation, plan.a, plan.b, plan.c, plan.d, preference,
                                1, &found, &count);
  }
  if (preference != nullptr) lt_->MatmulPreferenceDestroy(preference);
  plan.Destroy(*lt_);
}

CublasLtPlans::~CublasLtPlans() {
  if (prepare_.joinable()) prepare_.join();
  for (auto& [key, plan] : plans_) plan.Destroy(*lt_);
  if (handle_ != nullptr) lt_->Destroy(handle_);
  for (cudaEvent_t event : {begin_, end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

void CublasLtPlans::Plan::Destroy(const CublasLt& lt) {
  if (operation != nullptr) lt.MatmulDescDestroy(operation);
  for (cublasLtMatrixLayout_t layout : {a, b, c, d}) {
    if (layout != nullptr) lt.MatrixLayoutDestroy(layout);
  }
}

CublasLtPlans::Key CublasLtPlans::KeyOf(const Gemm& p, int64_t rows) {
  const int types = static_cast<int>(p.x.dtype) * 16 + static_cast<int>(p.y.dtype);
  return {rows,
          EvenColumns(p),
          p.w->k(),
          p.x.stride[0],
          p.residual.stride[0],
          p.y.stride[0],
          Alignment(p.x),
          Alignment(p.residual),
          Alignment(p.y),
          types * 1024 + static_cast<int>(EpilogueOf(p)) * 2 + (p.residual.defined() ? 1 : 0)};
}

bool CublasLtPlans::Describe(const Gemm& p, Plan* plan) const {
  const cudaDataType_t in = CudaType(p.x.dtype), out = CudaType(p.y.dtype);
  const uint64_t rows = static_cast<uint64_t>(plan->rows);
  const uint64_t n = static_cast<uint64_t>(EvenColumns(p));
  const uint64_t k = static_cast<uint64_t>(p.w->k());
  const int64_t c_stride = p.residual.defined() ? p.residual.stride[0] : p.y.stride[0];
  const cublasOperation_t transpose = CUBLAS_OP_T;
  const cublasLtEpilogue_t epilogue = EpilogueOf(p);
  return lt_->MatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
             CUBLAS_STATUS_SUCCESS &&
         lt_->MatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                     sizeof(transpose)) == CUBLAS_STATUS_SUCCESS &&
         lt_->MatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                     sizeof(epilogue)) == CUBLAS_STATUS_SUCCESS &&
         lt_->MatrixLayoutCreate(&plan->a, in, k, n, p.w->k()) == CUBLAS_STATUS_SUCCESS &&
         lt_->MatrixLayoutCreate(&plan->b, in, k, rows, p.x.stride[0]) == CUBLAS_STATUS_SUCCESS &&
         lt_->MatrixLayoutCreate(&plan->c, out, n, rows, c_stride) == CUBLAS_STATUS_SUCCESS &&
         lt_->MatrixLayoutCreate(&plan->d, out, n, rows, p.y.stride[0]) == CUBLAS_STATUS_SUCCESS;
}

std::vector<CublasLtPlans::Candidate> CublasLtPlans::Candidates(const Gemm& p,
                                                                const Plan& plan) const {
  std::vector<Candidate> candidates;
  cublasLtMatmulPreference_t preference = nullptr;
  bool made = lt_->MatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS;
  const uint64_t workspace = kCublasLtWorkspaceBytes;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    made = made && lt_->MatmulPreferenceSetAttribute(preference, attribute, &value,
                                                     sizeof(value)) == CUBLAS_STATUS_SUCCESS;
  };
  const auto alignment = [](const Tensor& t) { return static_cast<uint32_t>(Alignment(t)); };
  const Tensor w = Tensor::Dense(p.w->panels(), p.x.dtype, {p.w->n(), p.w->k()});
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(w));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.x));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
         alignment(p.residual.defined() ? p.residual : p.y));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.y));
  std::array<cublasLtMatmulHeuristicResult_t, GemmAlgorithmChoices::kChoices> found{};
  int count = 0;
  made = made && lt_->MatmulAlgoGetHeuristic(handle_, plan.operation, plan.a, plan.b, plan.c,
                                             plan.d, preference, GemmAlgorithmChoices::kChoices,
                                             found.data(), &count) == CUBLAS_STATUS_SUCCESS;
  if (preference != nullptr) lt_->MatmulPreferenceDestroy(preference);
  for (int i = 0; made && i < count; ++i) {
    if (found[i].state == CUBLAS_STATUS_SUCCESS) candidates.push_back({found[i].algo});
  }
  return candidates;
}

void CublasLtPlans::KeepShared(const Plan& plan, std::vector<Candidate>* candidates) const {
  const uint64_t rows = static_cast<uint64_t>(plan.rows);
  const uint64_t fewest = rows - static_cast<uint64_t>(GemmRowStep(plan.rows - 1)) + 1;
  const auto tell_rows = [&](const uint64_t& count) {
    for (cublasLtMatrixLayout_t layout : {plan.b, plan.c, plan.d}) {
      lt_->MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &count, sizeof(count));
    }
  };
  std::vector<Candidate> shared;
  tell_rows(fewest);
  for (const Candidate& candidate : *candidates) {
    cublasLtMatmulHeuristicResult_t checked{};
    const cublasStatus_t status = lt_->MatmulAlgoCheck(
        handle_, plan.operation, plan.a, plan.b, plan.c, plan.d, &candidate.algorithm, &checked);
    if (status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= kCublasLtWorkspaceBytes) {
      shared.push_back(candidate);
    }
  }
  tell_rows(rows);
  if (!shared.empty()) *candidates = std::move(shared);
}

// Median time in us of a few runs, each with W and x evicted from L2 as in a decoder step; negative
// if the algorithm fails.
float CublasLtPlans::MedianUs(const Gemm& p, Plan* plan, CudaStream& stream) {
  constexpr int kRuns = 5;
  const Buffer& evicting = static_cast<CudaDevice&>(stream).measuring()->evicting;
  std::array<float, kRuns> times;
  if (Multiply(p, plan, stream) != CUBLAS_STATUS_SUCCESS) return -1.0f;  // loads the kernel
  for (float& ms : times) {
    const bool queued =
        QT_CUDA(stream, cudaMemsetAsync(evicting.data(), 1, evicting.bytes(), Queue(stream))) &&
        QT_CUDA(stream, cudaEventRecord(begin_, Queue(stream))) &&
        Multiply(p, plan, stream) == CUBLAS_STATUS_SUCCESS &&
        QT_CUDA(stream, cudaEventRecord(end_, Queue(stream))) &&
        QT_CUDA(stream, cudaEventSynchronize(end_)) &&
        QT_CUDA(stream, cudaEventElapsedTime(&ms, begin_, end_));
    if (!queued) return -1.0f;
  }
  std::sort(times.begin(), times.end());
  return times[kRuns / 2] * 1e3f;
}

// Returns the index of the fastest candidate. The first candidate wins unless another one is
// clearly faster, so that noise in the measurements does not decide.
int CublasLtPlans::Quickest(const Gemm& p, const std::vector<Candidate>& candidates, Plan* plan,
                            CudaStream& stream) {
  constexpr float kClearly = 0.97f;
  for (cudaEvent_t* event : {&begin_, &end_}) {
    if (*event == nullptr && !QT_CUDA(stream, cudaEventCreate(event))) return 0;
  }
  int best = 0;
  float best_us = -1.0f;
  for (size_t i = 0; i < candidates.size(); ++i) {
    plan->algorithm = candidates[i].algorithm;
    const float us = MedianUs(p, plan, stream);
    if (us < 0.0f) continue;
    if (best_us >= 0.0f && us >= (best == 0 ? kClearly : 1.0f) * best_us) continue;
    best = static_cast<int>(i);
    best_us = us;
  }
  return best;
}

void CublasLtPlans::Choose(const Gemm& p, const std::vector<Candidate>& candidates, Plan* plan,
                           CudaStream& stream) {
  auto& device = static_cast<CudaDevice&>(stream);
  const Key key = KeyOf(p, plan->rows);
  int choice = device.gemm_choices().Find(key);
  if (choice < 0 && device.measuring() != nullptr && p.x.dim[0] == plan->rows) {
    const bool measures = candidates.size() > 1 && device.measuring()->goes_on();
    choice = measures ? Quickest(p, candidates, plan, stream) : 0;
    device.gemm_choices().Add(key, choice);
  }
  // Use the first candidate if no choice is recorded (-1) or the recorded choice is out of range.
  const size_t used = choice < 0 ? 0 : static_cast<size_t>(choice);
  plan->algorithm = candidates[used < candidates.size() ? used : 0].algorithm;
}

// Searches the existing plans of the same GEMM with more rows, fewest rows first, for an algorithm
// that also supports the rows of *plan, and copies the first such algorithm to *plan. Returns false
// if there is none.
bool CublasLtPlans::Adopt(const Key& key, Plan* plan) const {
  for (auto larger = plans_.upper_bound(key); larger != plans_.end(); ++larger) {
    const auto& [other, known] = *larger;
    if (!known.usable || !std::equal(key.begin() + 1, key.end(), other.begin() + 1)) continue;
    cublasLtMatmulHeuristicResult_t checked{};
    const cublasStatus_t status = lt_->MatmulAlgoCheck(
        handle_, plan->operation, plan->a, plan->b, plan->c, plan->d, &known.algorithm, &checked);
    if (status != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > kCublasLtWorkspaceBytes)
      continue;
    plan->algorithm = known.algorithm;
    return true;
  }
  return false;
}

CublasLtPlans::Plan CublasLtPlans::Make(const Gemm& p, int64_t rows, CudaStream& stream) {
  Plan plan;
  plan.rows = rows;
  if (!Describe(p, &plan)) return plan;
  auto& device = static_cast<CudaDevice&>(stream);
  const Key key = KeyOf(p, rows);
  const bool chosen = device.gemm_choices().Find(key) >= 0;
  if (!chosen && device.measuring() == nullptr && Adopt(key, &plan)) {
    plan.usable = true;
    return plan;
  }
  std::vector<Candidate> candidates = Candidates(p, plan);
  if (candidates.empty()) return plan;
  KeepShared(plan, &candidates);
  plan.usable = true;
  Choose(p, candidates, &plan, stream);
  return plan;
}

CublasLtPlans::Plan& CublasLtPlans::Find(const Gemm& p, int64_t rows, CudaStream& stream) {
  const Key key = KeyOf(p, rows);
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, Make(p, rows, stream)).first;
  return found->second;
}

cublasStatus_t CublasLtPlans::Multiply(const Gemm& p, Plan* plan, CudaStream& stream) {
  if (plan->rows != p.x.dim[0]) {
    plan->rows = p.x.dim[0];
    const uint64_t rows = static_cast<uint64_t>(plan->rows);
    for (cublasLtMatrixLayout_t layout : {plan->b, plan->c, plan->d}) {
      lt_->MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof(rows));
    }
  }
  if (p.bias.defined()) {
    const void* bias = p.bias.data;
    lt_->MatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                sizeof(bias));
  }
  const float beta = p.residual.defined() ? 1.0f : 0.0f;
  const void* c = p.residual.defined() ? p.residual.data : p.y.data;
  return lt_->Matmul(handle_, plan->operation, &p.alpha, p.w->panels(), plan->a, p.x.data, plan->b,
                     &beta, c, plan->c, p.y.data, plan->d, &plan->algorithm, p.workspace,
                     kCublasLtWorkspaceBytes, Queue(stream));
}

bool CublasLtPlans::Run(const Gemm& p, CudaStream& stream) {
  if (prepare_.joinable()) prepare_.join();
  if (status_ != CUBLAS_STATUS_SUCCESS) return false;
  const int64_t rows = p.x.dim[0], shared = RoundUpGemmRows(rows);
  Plan& plan = Find(p, shared, stream);
  if (!plan.usable) return false;
  cublasStatus_t status = Multiply(p, &plan, stream);
  if (status != CUBLAS_STATUS_SUCCESS && rows != shared) {
    // The algorithm of the shared plan does not support this number of rows: use a plan made for
    // exactly this number.
    Plan& own = Find(p, rows, stream);
    if (!own.usable) return false;
    status = Multiply(p, &own, stream);
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    stream.Fail("cublasLtMatmul of %ld x %ld x %ld: %s", p.x.dim[0], p.w->n(), p.w->k(),
                lt_->GetStatusString(status));
  }
  return true;
}

bool RunCublasLt(const Gemm& p, CudaStream& stream) {
  return static_cast<CudaDevice&>(stream).plans().Run(p, stream);
}

}  // namespace quintet::cuda
