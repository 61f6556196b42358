#include "server/api_completion.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "engine/text_stream.h"
#include "kernels/base/status_macros.h"
#include "server/api_chat.h"

namespace quintet {
namespace {

using Json = JsonValue;

constexpr char kDone[] = "data: [DONE]\n\n";

const char* FinishName(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
}

// Number of characters (code points) of UTF-8 text.
size_t Characters(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Returns the offset, in characters, at which each token begins in the text of `sequence`.
std::vector<size_t> TextOffsets(const v1::Sequence& sequence, const Tokenizer& tokenizer,
                                bool skip_special_tokens) {
  IncrementalText text(&tokenizer, skip_special_tokens);
  std::vector<size_t> offsets;
  size_t settled = 0, settled_characters = 0;
  for (const v1::TokenLogProb& token : sequence.logprobs()) {
    offsets.push_back(settled_characters +
                      Characters(absl::string_view(text.text()).substr(settled)));
    text.Push(static_cast<int32_t>(token.token_id()));
    const size_t now = text.settled_bytes();
    settled_characters += Characters(absl::string_view(text.text()).substr(settled, now - settled));
    settled = now;
  }
  return offsets;
}

Json ChatToken(const std::string& piece, float log_prob) {
  Json bytes = Json::Array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", piece}, {"logprob", log_prob}, {"bytes", std::move(bytes)}};
}

}  // namespace

CompletionTranslation::CompletionTranslation(const ApiRequest& request, bool chat)
    : chat_(chat),
      id_(absl::StrCat(chat ? "chatcmpl-" : "cmpl-", request.request_id)),
      created_(absl::ToUnixSeconds(absl::Now())) {}

absl::StatusOr<std::unique_ptr<Translation>> CompletionTranslation::Create(
    const ApiRequest& request, bool chat) {
  std::unique_ptr<CompletionTranslation> made(new CompletionTranslation(request, chat));
  JsonFields fields(request.body);
  v1::GenerateRequest proto;
  proto.mutable_call()->set_request_id(request.request_id);
  fields.ReadCall(proto.mutable_call());
  QT_RETURN_IF_ERROR(fields.status());
  const absl::StatusOr<std::shared_ptr<ModelHost>> host = request.Find(proto.call().model());
  if (host.ok()) {
    made->host_ = *host;
    made->model_ = proto.call().model().empty() ? (*host)->options().name : proto.call().model();
  }
  std::vector<v1::Input> prompts;
  bool list = false;
  if (chat) {
    if (!host.ok()) return host.status();
    QT_ASSIGN_OR_RETURN(std::string text, ChatPrompt((*host)->options().templates, &fields));
    prompts.emplace_back().set_text(std::move(text));
  } else {
    fields.ReadInputs("prompt", &prompts, &list);
  }
  made->ReadOptions(&fields, &proto);
  QT_RETURN_IF_ERROR(fields.status());
  made->AddPrompts(prompts, list, std::move(proto));
  return made;
}

void CompletionTranslation::ReadOptions(JsonFields* fields, v1::GenerateRequest* proto) {
  v1::DecodingOptions* const decoding = proto->mutable_decoding();
  for (const char* penalty : {"frequency_penalty", "presence_penalty"}) {
    fields->Refuse(penalty, {"0", "0.0", "-0.0"}, "not supported; see repetition_penalty");
  }
  fields->Refuse("logit_bias", {"{}"}, "not supported; see suppress_tokens and bad_words_ids");
  fields->Refuse("suffix", {"\"\""}, "not supported");
  for (const char* tool : {"tools", "functions"}) fields->Refuse(tool, {"[]"}, "not supported");
  for (const char* choice : {"tool_choice", "function_call"}) {
    fields->Refuse(choice, {"\"none\"", "\"auto\""}, "not supported");
  }
  fields->Refuse("response_format", {R"({"type":"text"})"}, "only text is supported");
  ReadCounts(fields, decoding);
  ReadSampling(fields, decoding);
  ReadLogProbs(fields, decoding);
  ReadStream(fields);
  fields->ReadDecoding(decoding);
  token_ids_ = decoding->return_token_ids();
  decoding->set_return_token_ids(token_ids_);
  if (decoding->has_skip_special_tokens()) skip_special_tokens_ = decoding->skip_special_tokens();
  if (decoding->has_num_return_sequences()) {
    sequences_ = decoding->num_return_sequences();
  } else if (host_ != nullptr) {
    const int64_t usual = host_->defaults().num_return_sequences.value_or(1);
    sequences_ = static_cast<size_t>(std::max<int64_t>(usual, 1));
  }
}

void CompletionTranslation::ReadCounts(JsonFields* fields, v1::DecodingOptions* to) {
  for (const char* name : {"max_completion_tokens", "max_tokens"}) {
    std::optional<uint32_t> most;
    fields->Read(name, &most);
    if (!most.has_value()) continue;
    if (to->has_max_new_tokens()) fields->Fail(name, "cannot be set twice under two names");
    to->set_max_new_tokens(*most);
    aliases_.push_back({"decoding.max_new_tokens", name});
  }
  std::optional<uint32_t> n, best_of;
  bool beams = false;
  fields->Read("n", &n);
  fields->Read("best_of", &best_of);
  fields->Read("use_beam_search", &beams);
  if (n.has_value() && *n != 1) {
    to->set_num_return_sequences(*n);
    aliases_.push_back({"decoding.num_return_sequences", "n"});
  }
  const uint32_t least = n.value_or(1);
  if (best_of.has_value() && *best_of < least) {
    fields->Fail("best_of", absl::StrCat("must be at least n, ", least, ", got ", *best_of));
  }
  const uint32_t width = best_of.value_or(beams ? least : 1);
  if (width > 1) {
    to->set_num_beams(width);
    aliases_.push_back({"decoding.num_beams", best_of.has_value() ? "best_of" : "n"});
  }
}

void CompletionTranslation::ReadSampling(JsonFields* fields, v1::DecodingOptions* to) {
  std::optional<double> temperature, top_p;
  fields->Read("temperature", &temperature);
  if (!temperature.has_value()) {
    // top_p = 1 has no effect, and clients send it by default: it is not passed on.
    if (const nlohmann::json* const value = fields->Find("top_p"); value != nullptr) {
      fields->Read("top_p", &top_p);
      if (top_p.has_value() && *top_p != 1) to->set_top_p(static_cast<float>(*top_p));
    }
    return;
  }
  bool sample = *temperature != 0;
  fields->Read("do_sample", &sample);
  if (!sample && *temperature != 0) {
    fields->Fail("do_sample", "contradicts temperature, which is 0 for greedy decoding");
  }
  sample = *temperature != 0;
  to->set_do_sample(sample);
  if (sample) {
    const double most = std::numeric_limits<float>::max();
    to->set_temperature(static_cast<float>(std::clamp(*temperature, -most, most)));
    return;
  }
  // Greedy decoding ignores the options read below (seed, ...), as OpenAI's API does.
  std::optional<uint64_t> seed, top_k;
  std::optional<double> ignored;
  fields->Read("seed", &seed);
  fields->Read("top_k", &top_k);
  for (const char* name : {"top_p", "min_p", "typical_p"}) fields->Read(name, &ignored);
}

void CompletionTranslation::ReadLogProbs(JsonFields* fields, v1::DecodingOptions* to) {
  const nlohmann::json* const value = fields->Find("logprobs");
  if (value == nullptr) return;
  if (value->is_boolean()) {
    bool wanted = false;
    fields->Read("logprobs", &wanted);
    // If logprobs is false and top_logprobs is set, the RPC returns an error.
    if (wanted) to->set_logprobs(true);
    return;
  }
  std::optional<uint32_t> count;
  fields->Read("logprobs", &count);
  to->set_logprobs(true);
  if (count.value_or(0) == 0) return;
  if (fields->Find("top_logprobs") != nullptr) {
    fields->Fail("top_logprobs", "cannot be set together with a number in logprobs");
  }
  to->set_top_logprobs(*count);
  aliases_.push_back({"decoding.top_logprobs", "logprobs"});
}

void CompletionTranslation::ReadStream(JsonFields* fields) {
  fields->Read("stream", &stream_);
  const nlohmann::json* const options = fields->Find("stream_options");
  if (options == nullptr) return;
  JsonFields inner(*options, "stream_options.");
  inner.Read("include_usage", &include_usage_);
  bool ignored = false;
  inner.Read("continuous_usage_stats", &ignored);
  if (inner.status().ok() && !stream_) inner.Fail("include_usage", "needs stream");
  fields->Fail(inner.status());
}

void CompletionTranslation::AddPrompts(const std::vector<v1::Input>& prompts, bool list,
                                       v1::GenerateRequest proto) {
  names_.clear();
  for (size_t i = 0; i < prompts.size(); ++i) {
    *proto.mutable_input() = prompts[i];
    AddRpc(stream_ ? "GenerateStream" : "Generate", proto);
    const std::string input = chat_  ? "messages"
                              : list ? absl::StrCat("prompt[", i, "]")
                                     : std::string("prompt");
    names_.push_back(aliases_);
    names_.back().push_back({"input", input});
  }
  // This bounds only the size of streamed_. If the client asks for more sequences than Generate
  // permits, the RPC returns an error.
  sequences_ = std::min<size_t>(sequences_, 1024);
  streamed_.resize(prompts.size() * sequences_);
  chunk_head_ = JsonText(Head(chat_ ? "chat.completion.chunk" : "text_completion"));
  chunk_head_.pop_back();  // the closing brace
  chunk_head_ = absl::StrCat("data: ", chunk_head_, R"(,"choices":[{"index":)");
}

Json CompletionTranslation::Head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

Json CompletionTranslation::LogProbs(const v1::Sequence& sequence) const {
  const Tokenizer* const tokenizer = host_ == nullptr ? nullptr : host_->tokenizer();
  if (sequence.logprobs().empty() || tokenizer == nullptr) return nullptr;
  const auto piece = [tokenizer](uint32_t id) {
    return tokenizer->Piece(static_cast<int32_t>(id));
  };
  if (chat_) {
    Json content = Json::Array();
    for (const v1::TokenLogProb& token : sequence.logprobs()) {
      Json one = ChatToken(piece(token.token_id()), token.log_prob());
      one["top_logprobs"] = Json::Array();
      for (const v1::TokenAlternative& other : token.top()) {
        one["top_logprobs"].push_back(ChatToken(piece(other.token_id()), other.log_prob()));
      }
      content.push_back(std::move(one));
    }
    return {{"content", std::move(content)}};
  }
  Json tokens = Json::Array(), values = Json::Array(), tops = Json::Array();
  for (const v1::TokenLogProb& token : sequence.logprobs()) {
    tokens.push_back(piece(token.token_id()));
    values.push_back(token.log_prob());
    Json top = Json::Object();
    for (const v1::TokenAlternative& other : token.top()) {
      top[piece(other.token_id())] = other.log_prob();
    }
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", TextOffsets(sequence, *tokenizer, skip_special_tokens_)}};
}

Json CompletionTranslation::Choice(size_t index, const v1::Sequence& sequence,
                                   size_t sent_tokens) const {
  Json choice = {{"index", index},
                 {"logprobs", LogProbs(sequence)},
                 {"finish_reason", FinishName(sequence.finish_reason())}};
  const std::string& stop = sequence.matched_stop();
  choice["stop_reason"] = stop.empty() ? Json() : Json(stop);
  if (sequence.has_score()) choice["score"] = sequence.score();
  if (token_ids_) {
    const auto& ids = sequence.token_ids();
    const auto rest = static_cast<int>(std::min<size_t>(sent_tokens, ids.size()));
    choice["token_ids"] = std::vector<uint32_t>(ids.begin() + rest, ids.end());
  }
  return choice;
}

void CompletionTranslation::Count(const v1::GenerateResponse& response) {
  const v1::Usage& usage = response.info().usage();
  prompt_tokens_ += usage.input_tokens();
  completion_tokens_ += usage.output_tokens();
}

Json CompletionTranslation::UsageJson() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", prompt_tokens_ + completion_tokens_}};
}

absl::StatusOr<std::string> CompletionTranslation::Body(
    const std::vector<grpc::ByteBuffer>& responses) {
  Json choices = Json::Array();
  std::vector<uint64_t> seeds;
  for (size_t rpc = 0; rpc < responses.size(); ++rpc) {
    const auto response = Parsed<v1::GenerateResponse>(responses[rpc]);
    Count(response);
    for (const v1::Sequence& sequence : response.sequences()) {
      Json choice = Choice(rpc * sequences_ + sequence.index(), sequence, /*sent_tokens=*/0);
      if (chat_) {
        choice["message"] = {{"role", "assistant"}, {"content", sequence.text()}};
      } else {
        choice["text"] = sequence.text();
      }
      choices.push_back(std::move(choice));
    }
    seeds.push_back(response.seed());
  }
  Json body = Head(chat_ ? "chat.completion" : "text_completion");
  body["choices"] = std::move(choices);
  body["usage"] = UsageJson();
  body["seed"] = seeds.size() == 1 ? Json(seeds[0]) : Json(seeds);
  return JsonText(body);
}

std::string CompletionTranslation::OnChunk(size_t rpc, const v1::GenerateChunk& chunk) {
  if (chunk.text().empty() && (!token_ids_ || chunk.token_ids().empty())) return "";
  const size_t index = rpc * sequences_ + chunk.index();
  if (index >= streamed_.size()) return "";
  // Streams have one such event per token, so it is written without a JSON library.
  std::string event = absl::StrCat(chunk_head_, index, R"(,"logprobs":null,"finish_reason":null)");
  Streamed& streamed = streamed_[index];
  streamed.text_bytes += chunk.text().size();
  streamed.tokens += static_cast<size_t>(chunk.token_ids_size());
  if (chat_) {
    const bool role = !std::exchange(streamed.role, true);
    absl::StrAppend(&event, R"(,"delta":{)", role ? R"("role":"assistant",)" : "", R"("content":)");
  } else {
    absl::StrAppend(&event, R"(,"text":)");
  }
  AppendJsonString(chunk.text(), &event);
  if (chat_) event += '}';
  if (token_ids_) {
    absl::StrAppend(&event, R"(,"token_ids":[)", absl::StrJoin(chunk.token_ids(), ","), "]");
  }
  absl::StrAppend(&event, include_usage_ ? R"(}],"usage":null})" : "}]}", "\n\n");
  return event;
}

std::string CompletionTranslation::LastEvent(size_t index, const v1::Sequence& sequence) {
  Streamed none;
  Streamed& streamed = index < streamed_.size() ? streamed_[index] : none;
  Json choice = Choice(index, sequence, streamed.tokens);
  // Sequences of a beam search are complete only now.
  const std::string rest =
      sequence.text().substr(std::min(streamed.text_bytes, sequence.text().size()));
  if (!chat_) {
    choice["text"] = rest;
  } else {
    choice["delta"] = Json::Object();
    if (!std::exchange(streamed.role, true)) choice["delta"]["role"] = "assistant";
    if (!rest.empty()) choice["delta"]["content"] = rest;
  }
  Json event = Head(chat_ ? "chat.completion.chunk" : "text_completion");
  event["choices"] = Json::Array({std::move(choice)});
  if (include_usage_) event["usage"] = nullptr;
  return Event(event);
}

std::string CompletionTranslation::OnComplete(size_t rpc, const v1::GenerateResponse& response) {
  Count(response);
  std::string events;
  for (const v1::Sequence& sequence : response.sequences()) {
    events += LastEvent(rpc * sequences_ + sequence.index(), sequence);
  }
  return events;
}

std::string CompletionTranslation::OnEnd() {
  std::string events;
  if (include_usage_) {
    Json event = Head(chat_ ? "chat.completion.chunk" : "text_completion");
    event["choices"] = Json::Array();
    event["usage"] = UsageJson();
    events = Event(event);
  }
  return events + kDone;
}

std::string CompletionTranslation::OnError(const std::string& error) {
  return absl::StrCat("data: ", error, "\n\n", kDone);
}

}  // namespace quintet
