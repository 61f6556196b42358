#include "server/proto_conversion.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/reflection.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/tensor.h"
#include "models/adapter_pool.h"

namespace quintet {
namespace {

absl::Status InvalidCallField(const std::string& field, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", text));
}

absl::Status CheckIds(const google::protobuf::RepeatedField<uint32_t>& ids, int64_t vocab,
                      const std::string& field) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab) {
      return InvalidCallField(absl::StrCat(field, "[", i, "]"),
                              absl::StrCat("must be below ", vocab, ", got ", ids[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadEarlyStopping(v1::EarlyStopping from, std::optional<EarlyStopping>* to) {
  switch (from) {
    case v1::EARLY_STOPPING_UNSPECIFIED:
      return absl::OkStatus();
    case v1::EARLY_STOPPING_HEURISTIC:
      *to = EarlyStopping::kHeuristic;
      return absl::OkStatus();
    case v1::EARLY_STOPPING_FIRST:
      *to = EarlyStopping::kFirst;
      return absl::OkStatus();
    case v1::EARLY_STOPPING_NEVER:
      *to = EarlyStopping::kNever;
      return absl::OkStatus();
    default:
      return UnknownEnumValue("decoding.early_stopping", from, v1::EarlyStopping_MAX);
  }
}

// Copies fields of v1::DecodingOptions into fields of DecodingRequest with the same name. A field
// that the proto lacks or has in another type is a bug and aborts; proto_conversion_test.cc sets
// every field.
class DecodingReader {
 public:
  explicit DecodingReader(const v1::DecodingOptions& from)
      : from_(from), reflection_(*from.GetReflection()) {}

  void Read(const char* name, std::optional<int64_t>* to) {
    if (Has(name)) *to = reflection_.GetUInt32(from_, Field(name));
  }
  void Read(const char* name, std::optional<uint64_t>* to) {
    if (Has(name)) *to = reflection_.GetUInt64(from_, Field(name));
  }
  void Read(const char* name, std::optional<double>* to) {
    if (Has(name)) *to = reflection_.GetFloat(from_, Field(name));
  }
  void Read(const char* name, std::optional<bool>* to) {
    if (Has(name)) *to = reflection_.GetBool(from_, Field(name));
  }
  void Read(const char* name, std::optional<EarlyStopping>* to) {
    if (Has(name)) status_ = ReadEarlyStopping(from_.early_stopping(), to);
  }
  void Read(const char* name, std::vector<uint32_t>* to) {
    const auto ids = reflection_.GetRepeatedFieldRef<uint32_t>(from_, Field(name));
    to->assign(ids.begin(), ids.end());
  }
  void Read(const char* name, std::vector<std::vector<uint32_t>>* to) {
    for (const auto& list : reflection_.GetRepeatedFieldRef<v1::TokenIds>(from_, Field(name))) {
      to->emplace_back(list.ids().begin(), list.ids().end());
    }
  }
  void Read(const char* name, std::vector<std::string>* to) {
    const auto texts = reflection_.GetRepeatedFieldRef<std::string>(from_, Field(name));
    to->assign(texts.begin(), texts.end());
  }
  const absl::Status& status() const { return status_; }

 private:
  const google::protobuf::FieldDescriptor* Field(const char* name) const {
    const auto* field = from_.GetDescriptor()->FindFieldByName(name);
    QT_CHECK(field != nullptr);
    return field;
  }
  bool Has(const char* name) const { return reflection_.HasField(from_, Field(name)); }

  const v1::DecodingOptions& from_;
  const google::protobuf::Reflection& reflection_;
  absl::Status status_;
};

}  // namespace

InputSize operator+(const InputSize& a, const InputSize& b) {
  return {a.bytes + b.bytes, a.text_bytes + b.text_bytes};
}

InputSize SizeOf(const v1::Input& input) {
  if (input.content_case() != v1::Input::kText) {
    return {int64_t{3} * input.token_ids().ids_size(), 0};
  }
  const int64_t bytes = static_cast<int64_t>(input.text().size());
  return {bytes, bytes};
}

InputSize SizeOf(const google::protobuf::RepeatedPtrField<v1::Input>& inputs) {
  InputSize size;
  for (const v1::Input& input : inputs) size = size + SizeOf(input);
  return size;
}

absl::Status UnknownEnumValue(const std::string& field, int value, int most) {
  return InvalidCallField(field, absl::StrCat("must be 0 to ", most, ", got ", value));
}

bool IsRequestId(absl::string_view text) {
  return text.size() <= kMaxRequestIdBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

absl::Status CheckCallOptions(const v1::CallOptions& call) {
  if (call.model().size() > kMaxModelNameBytes) {
    return InvalidCallField("call.model", absl::StrCat("must be at most ", kMaxModelNameBytes,
                                                       " bytes, got ", call.model().size()));
  }
  if (call.request_id().size() > kMaxRequestIdBytes) {
    return InvalidCallField("call.request_id",
                            absl::StrCat("must be at most ", kMaxRequestIdBytes, " bytes, got ",
                                         call.request_id().size()));
  }
  if (!IsRequestId(call.request_id()))
    return InvalidCallField("call.request_id", "may hold only letters, digits, '.', '_' and '-'");
  if (call.adapter().size() > kMaxAdapterNameBytes) {
    return InvalidCallField("call.adapter", absl::StrCat("must be at most ", kMaxAdapterNameBytes,
                                                         " bytes, got ", call.adapter().size()));
  }
  if (!v1::Priority_IsValid(call.priority())) {
    return UnknownEnumValue("call.priority", call.priority(), v1::Priority_MAX);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> TokenizeInput(
    const v1::Input& input, const v1::CallOptions& call, const Tokenizer* tokenizer,
    const InputLimits& limits, const std::string& field, const Embedding* embedding) {
  std::vector<int32_t> ids;
  switch (input.content_case()) {
    case v1::Input::CONTENT_NOT_SET:
      return InvalidCallField(field, "must hold text or token_ids");
    case v1::Input::kTokenIds: {
      QT_RETURN_IF_ERROR(CheckIds(input.token_ids().ids(), limits.vocab, field + ".token_ids.ids"));
      ids.assign(input.token_ids().ids().begin(), input.token_ids().ids().end());
      break;
    }
    case v1::Input::kText: {
      const std::string prompt = embedding == nullptr ? "" : embedding->prompt();
      const int64_t bytes = static_cast<int64_t>(prompt.size() + input.text().size());
      if (bytes > limits.max_text_bytes) {
        return InvalidCallField(
            field + ".text",
            absl::StrCat("must be at most ", limits.max_text_bytes, " bytes, got ", bytes));
      }
      if (tokenizer == nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat(field, ".text: this model has no tokenizer; send token_ids"));
      }
      absl::StatusOr<std::vector<int32_t>> encoded = tokenizer->Encode(
          prompt + input.text(), !call.has_add_special_tokens() || call.add_special_tokens());
      if (!encoded.ok())
        return InvalidCallField(field + ".text", std::string(encoded.status().message()));
      ids = *std::move(encoded);
      if (embedding != nullptr) embedding->Truncate(tokenizer, &ids);
      break;
    }
  }
  const int64_t tokens = static_cast<int64_t>(ids.size());
  if (tokens == 0) return InvalidCallField(field, "must give at least 1 token, got 0");
  if (tokens > limits.max_tokens) {
    if (!call.truncate() && (embedding == nullptr || !embedding->truncates())) {
      return InvalidCallField(
          field, absl::StrCat("must be at most ", limits.max_tokens, " tokens, got ", tokens));
    }
    // Truncation keeps the eos token at the end, as Hugging Face does.
    const int32_t last = ids.back();
    ids.resize(static_cast<size_t>(limits.max_tokens));
    if (tokenizer != nullptr && last == tokenizer->eos_id()) ids.back() = last;
  }
  return ids;
}

Priority PriorityFromProto(v1::Priority priority) {
  switch (priority) {
    case v1::PRIORITY_LOW:
      return Priority::kLow;
    case v1::PRIORITY_HIGH:
      return Priority::kHigh;
    default:
      return Priority::kNormal;
  }
}

absl::StatusOr<DecodingRequest> DecodingFromProto(const v1::DecodingOptions& decoding,
                                                  const Tokenizer* tokenizer,
                                                  const InputLimits& limits) {
  DecodingRequest to;
  DecodingReader reader(decoding);
  VisitRequestFields(&to, [&reader](const char* name, auto* field) { reader.Read(name, field); });
  QT_RETURN_IF_ERROR(reader.status());
  if (decoding.has_decoder_prefix()) {
    v1::CallOptions prefix_call;
    prefix_call.set_add_special_tokens(false);
    QT_ASSIGN_OR_RETURN(to.decoder_prefix,
                        TokenizeInput(decoding.decoder_prefix(), prefix_call, tokenizer, limits,
                                      "decoding.decoder_prefix"));
  }
  return to;
}

void WriteTokenLogProbs(const std::vector<TokenLogProb>& from,
                        google::protobuf::RepeatedPtrField<v1::TokenLogProb>* to) {
  to->Reserve(static_cast<int>(from.size()));
  for (const TokenLogProb& token : from) {
    v1::TokenLogProb* proto = to->Add();
    proto->set_token_id(static_cast<uint32_t>(token.token));
    proto->set_log_prob(token.log_prob);
    for (const auto& [id, log_prob] : token.alternatives) {
      v1::TokenAlternative* alternative = proto->add_top();
      alternative->set_token_id(static_cast<uint32_t>(id));
      alternative->set_log_prob(log_prob);
    }
  }
}

void WriteSequence(const GeneratedSequence& sequence, int index, const SequenceOptions& options,
                   v1::Sequence* proto) {
  proto->set_index(static_cast<uint32_t>(index));
  if (options.return_text) proto->set_text(sequence.text);
  if (options.return_token_ids) {
    proto->mutable_token_ids()->Add(sequence.token_ids.begin(), sequence.token_ids.end());
  }
  WriteTokenLogProbs(sequence.logprobs, proto->mutable_logprobs());
  if (options.return_scores) proto->set_score(sequence.score);
  proto->set_matched_stop(sequence.matched_stop);
  switch (sequence.finish_reason) {
    case FinishReason::kEos:
      proto->set_finish_reason(v1::FINISH_REASON_EOS);
      break;
    case FinishReason::kStop:
      proto->set_finish_reason(v1::FINISH_REASON_STOP);
      break;
    default:
      proto->set_finish_reason(v1::FINISH_REASON_LENGTH);
      break;
  }
}

namespace {

DType DTypeOf(v1::VectorType type) {
  if (type == v1::VECTOR_TYPE_FP16) return DType::kF16;
  return type == v1::VECTOR_TYPE_BF16 ? DType::kBF16 : DType::kF32;
}

}  // namespace

int64_t VectorBytes(v1::VectorType type) { return DTypeBytes(DTypeOf(type)); }

void AppendEmbedding(const Result& result, v1::VectorType type, std::string* values) {
  const size_t before = values->size();
  values->resize(before + result.values.size() * static_cast<size_t>(VectorBytes(type)));
  ConvertFromF32(result.values.data(), static_cast<int64_t>(result.values.size()), DTypeOf(type),
                 values->data() + before);
}

void WriteEmbedding(const Result& result, v1::VectorType type, v1::Embedding* proto) {
  proto->set_rows(static_cast<uint32_t>(result.rows));
  proto->set_columns(static_cast<uint32_t>(result.columns));
  proto->set_vector_type(type == v1::VECTOR_TYPE_UNSPECIFIED ? v1::VECTOR_TYPE_FP32 : type);
  AppendEmbedding(result, type, proto->mutable_values());
}

void WriteInfo(const Result& result, v1::CallInfo* info) {
  v1::Usage* usage = info->mutable_usage();
  usage->set_input_tokens(usage->input_tokens() + static_cast<uint32_t>(result.input_tokens));
  usage->set_prefix_tokens(usage->prefix_tokens() + static_cast<uint32_t>(result.prefix_tokens));
  usage->set_output_tokens(usage->output_tokens() + static_cast<uint32_t>(result.output_tokens));
  usage->set_cached_tokens(usage->cached_tokens() + static_cast<uint32_t>(result.cached_tokens));
  // Each duration is the maximum over the inputs of the call, because the inputs run concurrently.
  v1::Timing* timing = info->mutable_timing();
  const auto slowest = [](uint64_t a, int64_t b) {
    return std::max(a, static_cast<uint64_t>(std::max<int64_t>(b, 0)));
  };
  timing->set_queue_us(slowest(timing->queue_us(), result.timing.queue_us));
  timing->set_encode_us(slowest(timing->encode_us(), result.timing.encode_us));
  timing->set_first_token_us(slowest(timing->first_token_us(), result.timing.first_token_us));
  timing->set_decode_us(slowest(timing->decode_us(), result.timing.decode_us));
}

}  // namespace quintet
