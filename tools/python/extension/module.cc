// The extension module quintet._engine: a model in this process. quintet/model.py is its interface
// for users. Functions release the GIL while they wait. Calls after a fork raise ForkError, because
// the engine's threads exist only in the process that loaded the model.
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "engine/engine_runner.h"
#include "kernels/runtime/cores.h"
#include "models/checkpoint/dtype_names.h"
#include "models/checkpoint/find_model.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/shared_ptr.h"
#include "nanobind/stl/unique_ptr.h"
#include "nanobind/stl/vector.h"
#include "tools/python/extension/errors.h"
#include "tools/python/extension/items.h"
#include "tools/python/extension/values.h"

namespace quintet::python {
namespace {

constexpr int64_t kTickUs = 50'000;                    // between checks for signals
constexpr int kDebug = 10, kInfo = 20, kWarning = 30;  // levels of Python's logging

// A session and the threads that run it. Calls and other users share the ownership of this object,
// so it is destroyed with the last of them.
struct Loaded {
  std::unique_ptr<Session> session;
  std::unique_ptr<EngineRunner> runner;
  const pid_t pid = getpid();
};
using LoadedPtr = std::shared_ptr<Loaded>;

void CheckProcess(pid_t pid) {
  if (getpid() == pid) return;
  throw StatusError(absl::Status(
      absl::StatusCode::kFailedPrecondition,
      "the model was loaded before a fork: its threads do not exist in this process; load the "
      "model in this process, or start it with multiprocessing's \"spawn\" method"));
}

// A queue of asynchronous calls, by id (`token`), that have new results or chunks. Each AsyncModel
// has one queue, on which one Python thread waits.
class Notifier {
 public:
  void Post(int64_t token) {
    const std::lock_guard lock(mutex_);
    ready_.push_back(token);
    wake_.notify_one();
  }
  // Waits until the queue has an id or Close is called. Removes all ids from the queue and returns
  // them; an empty list means that the queue is closed.
  std::vector<int64_t> Wait() {
    const nb::gil_scoped_release release;
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return closed_ || !ready_.empty(); });
    std::vector<int64_t> tokens(ready_.begin(), ready_.end());
    ready_.clear();
    return tokens;
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<int64_t> ready_;
  bool closed_ = false;
};

class TokenNotifier : public CallNotifier {
 public:
  TokenNotifier(std::shared_ptr<Notifier> notifier, int64_t token)
      : notifier_(std::move(notifier)), token_(token) {}
  void Ready() override { notifier_->Post(token_); }

 private:
  const std::shared_ptr<Notifier> notifier_;
  const int64_t token_;
};

// The item of an input that has a wrong type or value. It fails with `error`.
class FailedItem : public WorkItem {
 public:
  explicit FailedItem(absl::Status error) : error_(std::move(error)) {}
  absl::StatusOr<Request> Prepare() override { return error_; }
  absl::Status Finish(Result) override { return error_; }

 private:
  const absl::Status error_;
};

class PythonCall {
 public:
  PythonCall(LoadedPtr loaded, std::shared_ptr<const CallOptions> options, int64_t rows,
             bool raises, std::shared_ptr<CallNotifier> notifier)
      : loaded_(std::move(loaded)), options_(std::move(options)), raises_(raises) {
    if (rows >= 0) {
      embeddings_ = std::make_shared<Embeddings>(rows, options_->embedding->columns());
    }
    call_ = loaded_->runner->Begin(std::move(notifier));
  }
  ~PythonCall() {
    if (getpid() == loaded_->pid) {
      Cancel();  // so that the GIL is released only where it may take long
      call_.reset();
      return;
    }
    // In a forked process locks may be held by threads that do not exist.
    (void)call_.release();
    (void)new LoadedPtr(std::move(loaded_));
  }
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;

  // Appends inputs. `extras`: None, or a list with the targets or context of each input.
  void Push(const nb::list& inputs, nb::object extras) {
    std::vector<std::unique_ptr<WorkItem>> items = ReadItems(inputs, std::move(extras));
    const nb::gil_scoped_release release;
    call_->Push(std::move(items));
  }

  // Pushes inputs and returns the results of all, in order. For one input this is cheaper
  // than Push and Pop, because the GIL is released only once. Raises the same errors as Pop.
  nb::list Run(const nb::list& inputs, nb::object extras) {
    std::vector<std::unique_ptr<WorkItem>> items = ReadItems(inputs, std::move(extras));
    std::vector<std::unique_ptr<WorkItem>> finished;
    nb::list results;
    {
      const nb::gil_scoped_release release;
      call_->Push(std::move(items));
      call_->Pop(kTickUs, pushed_ - popped_, &finished, nullptr);
    }
    AddResults(finished, &results);
    while (popped_ < pushed_ && failed_.ok()) results.extend(Pop(pushed_ - popped_));
    if (!failed_.ok()) throw StatusError(failed_, Number(popped_ - 1));
    return results;
  }

  // Returns the results of the next finished inputs, in input order. Waits until there are at least
  // `least`, or all; a signal handler that raises ends the wait. If an input has failed, its error
  // is raised (on_error="raise") or returned as an exception object (on_error="return").
  nb::list Pop(int64_t least) { return nb::borrow<nb::list>(PopWithChunks(least)[1]); }

  // Like Pop, but returns a tuple (chunks, results), whose results are those of Pop.
  nb::tuple PopWithChunks(int64_t least) {
    std::vector<TokenChunk> chunks;
    nb::list results;
    AddResults(TakeFinished(least, &chunks), &results);
    nb::list chunk_list;
    for (const TokenChunk& chunk : chunks) chunk_list.append(ChunkToPython(chunk));
    if (!failed_.ok() && results.size() == 0 && chunks.empty()) {
      throw StatusError(failed_, Number(popped_ - 1));
    }
    return nb::make_tuple(chunk_list, results);
  }

  // Like Pop, for a call whose results are rows of one array (Array()): returns the number of
  // finished inputs. The row of a failed input is NaN.
  int64_t PopRows(int64_t least) {
    const int64_t before = popped_;
    for (const std::unique_ptr<WorkItem>& item : TakeFinished(least, nullptr)) {
      if (!item->status.ok() && raises_) Fail(item->status);
      if (!item->status.ok()) embeddings_->FillWithNan(popped_);
      ++popped_;
      if (!failed_.ok()) throw StatusError(failed_, Number(popped_ - 1));
    }
    return popped_ - before;
  }

  int64_t pending() const {
    CheckProcess(loaded_->pid);
    return call_->pending();
  }
  void Cancel() {
    if (getpid() != loaded_->pid) return;  // the call belongs to another process
    if (popped_ == pushed_) return;        // nothing is left to cancel
    const nb::gil_scoped_release release;
    call_->Cancel();
  }
  nb::object Array() const {
    CheckRows(popped_ == embeddings_->rows);
    return ArrayOf(embeddings_);
  }

 private:
  // Returns the number of an input for error messages, or -1 (no number) if the call has one input.
  int64_t Number(int64_t index) const { return options_->one ? -1 : index; }

  std::vector<std::unique_ptr<WorkItem>> ReadItems(const nb::list& inputs, nb::object extras) {
    CheckProcess(loaded_->pid);
    const int64_t count = pushed_ + static_cast<int64_t>(inputs.size());
    if (embeddings_ != nullptr) CheckRows(count <= embeddings_->rows);
    std::vector<std::unique_ptr<WorkItem>> items;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const nb::object extra = extras.is_none() ? nb::none() : nb::object(extras[i]);
      try {
        items.push_back(MakeItem(options_, inputs[i], extra, embeddings_, pushed_));
      } catch (const StatusError& error) {  // fails in its turn, after the inputs before it
        items.push_back(std::make_unique<FailedItem>(error.status()));
      }
      ++pushed_;
    }
    return items;
  }

  // Throws unless `good`, which says that there is exactly one row for each input.
  void CheckRows(bool good) const {
    if (good) return;
    ThrowValue(absl::StrCat("inputs: their number changed during the call, from ",
                            embeddings_->rows,
                            "; pass a list that nobody changes, or an iterator"));
  }

  // Waits until `least` items (or all, if fewer are left) have finished, or a chunk arrives.
  // Returns the finished items. Raises the error that ended the call, or that of a signal handler.
  std::vector<std::unique_ptr<WorkItem>> TakeFinished(int64_t least,
                                                      std::vector<TokenChunk>* chunks) {
    CheckProcess(loaded_->pid);
    if (!failed_.ok()) throw StatusError(failed_, Number(popped_ - 1));
    std::vector<std::unique_ptr<WorkItem>> items;
    while (true) {
      {
        const nb::gil_scoped_release release;
        const int64_t wanted = least - static_cast<int64_t>(items.size());
        call_->Pop(least > 0 ? kTickUs : 0, std::max<int64_t>(wanted, 1), &items, chunks);
      }
      const bool enough = static_cast<int64_t>(items.size()) >= least;
      if (enough || (chunks != nullptr && !chunks->empty()) || call_->pending() == 0) return items;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  void Fail(const absl::Status& status) {
    failed_ = status;
    const nb::gil_scoped_release release;
    call_->Cancel();
  }

  void AddResults(const std::vector<std::unique_ptr<WorkItem>>& items, nb::list* results) {
    for (const std::unique_ptr<WorkItem>& item : items) AddResult(item.get(), results);
  }

  // Appends the item's result to *results. With on_error="raise" the first failed item ends the
  // call; its error is raised after the results of the items before it have been returned.
  void AddResult(WorkItem* item, nb::list* results) {
    if (!failed_.ok()) return;
    if (item->status.ok()) {
      results->append(static_cast<Item*>(item)->ToPython());
    } else if (raises_) {
      Fail(item->status);
    } else {
      results->append(ErrorObject(item->status, Number(popped_)));
    }
    ++popped_;
  }

  LoadedPtr loaded_;
  const std::shared_ptr<const CallOptions> options_;
  const bool raises_;
  std::shared_ptr<Embeddings> embeddings_;  // null: results are arrays of their own
  std::unique_ptr<EngineCall> call_;
  int64_t pushed_ = 0, popped_ = 0;
  absl::Status failed_;
};

void CheckRange(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    ThrowValue(absl::StrCat(name, ": ", value, " is not in [", least, ", ", most, "]"));
  }
}

class PythonModel {
 public:
  explicit PythonModel(const SessionOptions& given) {
    SessionOptions options = given;
    options.placement.device = CanonicalDevice(given.placement.device);
    options.placement.dtype = CanonicalDtype(given.placement.dtype);
    const nb::gil_scoped_release release;
    OkOrThrow(Named("device", CheckDeviceName(options.placement.device)));
    OkOrThrow(Named("dtype", CheckDtypeName(options.placement.dtype)));
    OkOrThrow(Named("cache_dtype", CheckCacheDtypeName(options.placement.cache_dtype)));
    absl::StatusOr<std::string> directory = FindModel(options.model, options.follow_symlinks);
    OkOrThrow(Named(options.model.c_str(), directory.status()));
    options.model = *std::move(directory);
    const absl::StatusOr<ModelConfig> config = ReadModelConfig(options.model);
    OkOrThrow(Named(options.model.c_str(), config.status()));
    const SessionNeeds needs = {.kind = MainKind(config->head),
                                .tokenizer = TokenizerNeed::kIfThere,
                                .encodes = true,
                                .replicas = true};
    const auto warn = [this](absl::string_view text) { messages_.emplace_back(kWarning, text); };
    const auto info = [this](absl::string_view text) { messages_.emplace_back(kInfo, text); };
    const auto debug = [this](absl::string_view text) { messages_.emplace_back(kDebug, text); };
    auto loaded = std::make_shared<Loaded>();
    absl::StatusOr<std::vector<std::unique_ptr<Device>>> opened =
        OpenDevices(&options.placement, needs.replicas);
    OkOrThrow(opened.status());
    absl::StatusOr<std::unique_ptr<Session>> session = LoadSession(
        options, needs, *std::move(opened), {.warn = warn, .info = info, .debug = debug});
    if (!session.ok()) OkOrThrow(Named(options.model.c_str(), session.status()));
    loaded->session = *std::move(session);
    const int workers = 2 * std::clamp(AvailableCores() / 4, 1, 4);
    loaded->runner = EngineRunner::Create(loaded->session.get(), workers);
    loaded_ = std::move(loaded);
  }
  ~PythonModel() {
    if (loaded_ == nullptr) return;
    if (getpid() == loaded_->pid) {
      Close();
    } else {  // the threads to end belong to another process
      (void)new LoadedPtr(std::move(loaded_));
    }
  }
  PythonModel(const PythonModel&) = delete;
  PythonModel& operator=(const PythonModel&) = delete;

  std::unique_ptr<PythonCall> Begin(const std::string& kind, const nb::dict& options,
                                    const nb::dict& decoding, int64_t rows, bool raises,
                                    std::shared_ptr<Notifier> notifier, int64_t token) {
    LoadedPtr loaded = Get();
    auto call = std::make_shared<CallOptions>();
    call->session = loaded->session.get();
    call->kind = KindOf(kind);
    ReadOptions(options, call.get());
    call->adapter = AdapterOf(options, *loaded->session);
    OkOrThrow(CheckHead(call->kind, loaded->session->config));
    if (call->kind == RequestKind::kEncode) {
      const Session& session = *loaded->session;
      absl::StatusOr<Embedding> embedding =
          Embedding::Create(call->embedding_options, session.config, session.modules.get(),
                            session.tokenizer.get(), session.flags.max_input_tokens);
      OkOrThrow(embedding.status());
      call->truncate = call->truncate || embedding->truncates();
      call->embedding = *std::move(embedding);
    }
    if (call->kind == RequestKind::kGenerate) {
      if (!loaded->session->flags.ignore_generation_fields) {
        OkOrThrow(CheckGenerationSupported(loaded->session->defaults));
      }
      call->decoding = ReadDecoding(decoding, *loaded->session);
      OkOrThrow(CheckDecodingRequest(*loaded->session, call->decoding, DecodingLimits()));
    }
    Request sight;
    sight.sliding_window = call->sliding_window;
    sight.prefix_lm = call->prefix_lm;
    OkOrThrow(CheckAttentionScope(sight, loaded->session->config));
    std::shared_ptr<CallNotifier> wake;
    if (notifier != nullptr) wake = std::make_shared<TokenNotifier>(std::move(notifier), token);
    return std::make_unique<PythonCall>(std::move(loaded), std::move(call), rows, raises,
                                        std::move(wake));
  }

  nb::object Tokenize(nb::handle text, bool add_special_tokens) {
    const LoadedPtr loaded = Get();
    if (!PyUnicode_Check(text.ptr())) {
      ThrowType(absl::StrCat("text: expected a str, got ", nb::type_name(text.type()).c_str()));
    }
    const Input input = ReadInput(text, "text");
    const Tokenizer& tokenizer = TokenizerOf(*loaded);
    if (input.text.size() > kMaxTextBytes) {
      ThrowValue(absl::StrCat("text: ", input.text.size(), " bytes exceed ", kMaxTextBytes));
    }
    absl::StatusOr<std::vector<TokenSpan>> spans;
    {
      const nb::gil_scoped_release release;
      spans = tokenizer.EncodeWithSpans(input.text, add_special_tokens);
    }
    OkOrThrow(spans.status());
    nb::list ids, pieces, offsets;
    for (const TokenSpan& span : *spans) {
      ids.append(span.id);
      pieces.append(ToStr(tokenizer.Piece(span.id)));
      offsets.append(nb::make_tuple(span.begin_byte, span.end_byte));
    }
    return Types().tokens(ids, pieces, offsets);
  }

  nb::object Detokenize(nb::handle ids, bool skip_special_tokens) {
    const LoadedPtr loaded = Get();
    if (PyUnicode_Check(ids.ptr())) ThrowType("token_ids: expected a list of token ids, got str");
    const Input input = ReadInput(ids, "token_ids");
    const int64_t vocab = loaded->session->config.vocab;
    for (size_t i = 0; i < input.ids.size(); ++i) {
      if (input.ids[i] >= vocab) {
        ThrowValue(absl::StrCat("token_ids[", i, "]: token id ", input.ids[i], " is not in [0, ",
                                vocab, ")"));
      }
    }
    const Tokenizer& tokenizer = TokenizerOf(*loaded);
    std::string text;
    {
      const nb::gil_scoped_release release;
      text = tokenizer.Decode(input.ids, skip_special_tokens);
    }
    return ToStr(text);
  }

  void LoadAdapter(const std::string& name, const std::string& path) {
    const LoadedPtr loaded = Get();
    const nb::gil_scoped_release release;
    OkOrThrow(ReadAdapter(loaded->session.get(), {name, path}));
  }
  void UnloadAdapter(const std::string& name) { OkOrThrow(Get()->session->adapters.Remove(name)); }

  nb::dict Info() const {
    const LoadedPtr loaded = Get();
    const Session& session = *loaded->session;
    nb::dict info;
    info["model"] = session.flags.model;
    info["family"] = FamilyName(session.config.family);
    info["head"] = HeadName(session.config.head);
    info["device"] = session.flags.placement.device;
    info["dtype"] = WeightTypeName(WeightTypeOf(session.flags.placement, session.config));
    info["cache_dtype"] = CacheTypeName(session.flags.placement, session.config);
    info["parameters"] = session.model->parameters();
    info["vocab"] = session.config.vocab;
    info["d_model"] = session.config.d_model;
    info["encoder_layers"] = session.config.encoder_layers;
    info["decoder_layers"] = session.config.decoder_layers;
    info["labels"] = session.config.label_names;
    info["eos_token_ids"] = std::vector<int32_t>(session.config.eos_ids);
    info["max_input_tokens"] = session.flags.max_input_tokens;
    info["max_num_seqs"] = loaded->session->max_running();
    info["prompt_names"] = PromptNames(session);
    info["adapters"] = AdapterNames(session);
    info["max_num_batched_tokens"] = session.model->limits().max_encode_tokens;
    info["threads"] = session.flags.threads;
    info["load_seconds"] = session.load_seconds;
    return info;
  }

  // Returns the number of inputs that one call should keep in flight.
  int64_t window() const { return RequestsInFlight(Get()->session->max_running()); }
  // Messages that loading the model logged, each with a level of Python's logging module.
  const std::vector<std::pair<int, std::string>>& messages() const { return messages_; }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return loaded_ == nullptr;
  }

  // Ends the calls of other threads with UNAVAILABLE. The model is freed when they have returned.
  void Close() {
    const nb::gil_scoped_release release;
    LoadedPtr loaded;
    {
      const std::lock_guard lock(mutex_);
      if (loaded_ != nullptr) CheckProcess(loaded_->pid);
      loaded = std::move(loaded_);
    }
    if (loaded != nullptr) loaded->runner->Close();
  }

 private:
  static absl::Status Named(const char* name, const absl::Status& status) {
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
  }

  // Of the request kinds that a model with this head supports, returns the one that needs the most
  // memory.
  static RequestKind MainKind(Head head) {
    return head == Head::kLanguageModel                    ? RequestKind::kGenerate
           : head == Head::kNone || head == Head::kEncoder ? RequestKind::kEncode
                                                           : RequestKind::kClassify;
  }

  static RequestKind KindOf(const std::string& kind) {
    return kind == "encode"     ? RequestKind::kEncode
           : kind == "score"    ? RequestKind::kScore
           : kind == "classify" ? RequestKind::kClassify
                                : RequestKind::kGenerate;
  }

  static void ReadOptions(const nb::dict& options, CallOptions* call) {
    Set(options, "add_special_tokens", &call->add_special_tokens);
    Set(options, "truncate", &call->truncate);
    Set(options, "skip_special_tokens", &call->skip_special_tokens);
    Set(options, "one", &call->one);
    Set(options, "timeout", &call->timeout_s);
    Set(options, "stream", &call->stream);
    Set(options, "target_special_tokens", &call->target_special_tokens);
    Set(options, "prefix_lm", &call->prefix_lm);
    Set(options, "top_logprobs", &call->top_logprobs);
    Set(options, "sliding_window", &call->sliding_window);
    Set(options, "top_k", &call->top_k);
    Set(options, "max_answer_tokens", &call->max_answer_tokens);
    call->embedding_options = ReadEmbeddingOptions(options);
  }

  LoadedPtr Get() const {
    const std::lock_guard lock(mutex_);
    if (loaded_ == nullptr) {
      throw StatusError(absl::FailedPreconditionError("the model has been closed"));
    }
    CheckProcess(loaded_->pid);
    return loaded_;
  }

  static const Tokenizer& TokenizerOf(const Loaded& loaded) {
    if (loaded.session->tokenizer == nullptr) {
      throw StatusError(absl::FailedPreconditionError("the model has no tokenizer; use token ids"));
    }
    return *loaded.session->tokenizer;
  }

  mutable std::mutex mutex_;
  LoadedPtr loaded_;  // null once closed
  std::vector<std::pair<int, std::string>> messages_;
};

// `options`: the LoadOptions (quintet/options.py) that are not None; Python has checked them.
void InitModel(PythonModel* self, const std::string& path, const nb::dict& options) {
  SessionOptions session = {.model = path};
  Set(options, "device", &session.placement.device);
  Set(options, "dtype", &session.placement.dtype);
  Set(options, "cache_dtype", &session.placement.cache_dtype);
  Set(options, "tokenizer", &session.tokenizer);
  Set(options, "follow_symlinks", &session.follow_symlinks);
  Set(options, "threads", &session.threads);
  Set(options, "engines", &session.engines);
  Set(options, "max_num_seqs", &session.max_running);
  Set(options, "max_input_tokens", &session.max_input_tokens);
  Set(options, "max_num_batched_tokens", &session.max_batch_tokens);
  Set(options, "cache_memory", &session.cache_mib);
  Set(options, "max_memory", &session.max_memory_mib);
  Set(options, "ignore_generation_fields", &session.ignore_generation_fields);
  session.adapters = ReadAdapters(options);
  session.adapter_slots = AdapterSlotsFor(session.adapters.size());
  constexpr int64_t kMost = int64_t{1} << 24;
  CheckRange("max_num_seqs", session.max_running, 0, 4096);
  CheckRange("max_input_tokens", session.max_input_tokens, 1, kMost);
  CheckRange("max_num_batched_tokens", session.max_batch_tokens, 0, kMost);
  CheckRange("cache_memory", session.cache_mib, 0, kMost);
  CheckRange("max_memory", session.max_memory_mib, 0, kMost);
  new (self) PythonModel(session);
}

// Returns (repository, revision) of a hub id, with an empty revision if it has none; otherwise
// None.
nb::object ReadHubId(const std::string& name) {
  const std::optional<HubId> id = ParseHubId(name);
  return id ? nb::object(nb::make_tuple(id->repository, id->revision)) : nb::none();
}

}  // namespace

NB_MODULE(_engine, m) {
  nb::set_leak_warnings(false);  // models that live until the process ends are no leak
  RegisterErrors();
  m.def("set_types", &SetPythonTypes);
  m.def("generation_option_names", &GenerationOptionNames);
  m.def("read_hub_id", &ReadHubId);
  m.def("hub_cache_directory", &HubCacheDirectory);
  m.attr("cuda") =
#ifdef QUINTET_CUDA
      true;
#else
      false;
#endif
  nb::class_<Notifier>(m, "Notifier")
      .def(nb::init<>())
      .def("wait", &Notifier::Wait)
      .def("close", &Notifier::Close);
  nb::class_<PythonCall>(m, "Call")
      .def("push", &PythonCall::Push, nb::arg("inputs"), nb::arg("extras").none())
      .def("run", &PythonCall::Run, nb::arg("inputs"), nb::arg("extras").none())
      .def("pop", &PythonCall::Pop, nb::arg("least") = 1)
      .def("pop_rows", &PythonCall::PopRows, nb::arg("least") = 1)
      .def("pop_with_chunks", &PythonCall::PopWithChunks, nb::arg("least") = 1)
      .def("pending", &PythonCall::pending)
      .def("cancel", &PythonCall::Cancel)
      .def("array", &PythonCall::Array);
  nb::class_<PythonModel>(m, "Model")
      .def("__init__", &InitModel)
      .def("begin", &PythonModel::Begin, nb::arg("kind"), nb::arg("options"), nb::arg("decoding"),
           nb::arg("rows") = -1, nb::arg("raises") = true, nb::arg("notifier").none() = nb::none(),
           nb::arg("token") = 0)
      .def("tokenize", &PythonModel::Tokenize)
      .def("detokenize", &PythonModel::Detokenize)
      .def("load_adapter", &PythonModel::LoadAdapter)
      .def("unload_adapter", &PythonModel::UnloadAdapter)
      .def("info", &PythonModel::Info)
      .def("window", &PythonModel::window)
      .def("messages", &PythonModel::messages)
      .def("close", &PythonModel::Close)
      .def_prop_ro("closed", &PythonModel::closed);
}

}  // namespace quintet::python
