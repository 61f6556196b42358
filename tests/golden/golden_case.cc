#include "tests/golden/golden_case.h"

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

// Reads a [rows, columns] I64 tensor of the mask or of token ids, which must fit in i32.
absl::StatusOr<TokenRows> ReadIds(const SafetensorsReader& reader, const StoredTensor& tensor) {
  if (tensor.type != StoredType::kI64 || tensor.shape.size() != 2) {
    return Bad(absl::StrCat("golden.safetensors: ", tensor.name,
                            ": expected I64 [rows, tokens], got ",
                            Describe(tensor.type, tensor.shape)));
  }
  std::vector<int64_t> values(static_cast<size_t>(tensor.bytes / 8));
  absl::Status status = reader.Read(tensor, 0, tensor.bytes, values.data());
  if (!status.ok()) return status;
  TokenRows rows;
  for (int64_t r = 0; r < tensor.shape[0]; ++r) {
    const int64_t* row = values.data() + r * tensor.shape[1];
    for (int64_t c = 0; c < tensor.shape[1]; ++c) {
      if (row[c] < 0 || row[c] > INT32_MAX) {
        return Bad(absl::StrCat("golden.safetensors: ", tensor.name, ": id ", row[c]));
      }
    }
    rows.emplace_back(row, row + tensor.shape[1]);
  }
  return rows;
}

absl::StatusOr<TokenRows> FindIds(const SafetensorsReader& reader, const std::string& name) {
  const StoredTensor* tensor = reader.Find(name);
  if (tensor == nullptr) return absl::NotFoundError(absl::StrCat("golden.safetensors: no ", name));
  return ReadIds(reader, *tensor);
}

absl::Status ReadTensors(GoldenCase* c) {
  absl::StatusOr<SafetensorsReader> reader =
      SafetensorsReader::OpenFile(absl::StrCat(c->directory, "/golden.safetensors"));
  if (!reader.ok()) return reader.status();
  absl::StatusOr<TokenRows> ids = FindIds(*reader, "input_ids");
  if (!ids.ok()) return ids.status();
  absl::StatusOr<TokenRows> mask = FindIds(*reader, "attention_mask");
  if (!mask.ok() && !absl::IsNotFound(mask.status())) return mask.status();
  for (size_t r = 0; r < ids->size(); ++r) {
    c->inputs.emplace_back();
    c->columns.emplace_back();
    for (size_t column = 0; column < (*ids)[r].size(); ++column) {
      if (mask.ok() && (r >= mask->size() || column >= (*mask)[r].size())) {
        return Bad("golden.safetensors: attention_mask has not the shape of input_ids");
      }
      if (mask.ok() && (*mask)[r][column] == 0) continue;
      c->inputs[r].push_back((*ids)[r][column]);
      c->columns[r].push_back(static_cast<int64_t>(column));
    }
    if (c->inputs[r].empty()) return Bad(absl::StrCat("golden.safetensors: row ", r, " is empty"));
  }
  if (c->inputs.empty()) return Bad("golden.safetensors: input_ids has no rows");
  absl::StatusOr<TokenRows> decoder = FindIds(*reader, "decoder_input_ids");
  if (!decoder.ok() && !absl::IsNotFound(decoder.status())) return decoder.status();
  if (decoder.ok()) c->decoder_inputs = *std::move(decoder);
  if (!c->decoder_inputs.empty() && c->decoder_inputs[0].empty()) {
    return Bad("golden.safetensors: decoder_input_ids has no columns");
  }
  for (const StoredTensor& tensor : reader->tensors()) {
    if (tensor.type != StoredType::kF32) continue;
    GoldenTensor golden{tensor.shape, std::vector<float>(static_cast<size_t>(tensor.bytes / 4))};
    absl::Status status = reader->Read(tensor, 0, tensor.bytes, golden.values.data());
    if (!status.ok()) return status;
    c->expected.emplace(tensor.name, std::move(golden));
  }
  return absl::OkStatus();
}

// Sets one option of Hugging Face's generate(). Returns false if the name is not supported.
bool ReadOption(const std::string& name, const nlohmann::json& value, DecodingRequest* options) {
  const auto number = [&] { return value.get<uint32_t>(); };
  if (name == "num_beams") {
    options->num_beams = number();
  } else if (name == "num_return_sequences") {
    options->num_return_sequences = number();
  } else if (name == "max_new_tokens") {
    options->max_new_tokens = number();
  } else if (name == "min_new_tokens") {
    options->min_new_tokens = number();
  } else if (name == "no_repeat_ngram_size") {
    options->no_repeat_ngram_size = number();
  } else if (name == "length_penalty") {
    options->length_penalty = value.get<float>();
  } else if (name == "repetition_penalty") {
    options->repetition_penalty = value.get<float>();
  } else if (name == "do_sample") {
    options->do_sample = value.get<bool>();
  } else if (name == "eos_token_id" && value.is_array()) {
    options->eos_token_ids = value.get<std::vector<uint32_t>>();
  } else if (name == "eos_token_id") {
    options->eos_token_ids = {number()};
  } else if (name == "early_stopping" && value.is_string() && value == "never") {
    options->early_stopping = EarlyStopping::kNever;
  } else if (name == "early_stopping") {
    options->early_stopping = value.get<bool>() ? EarlyStopping::kFirst : EarlyStopping::kHeuristic;
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<GoldenDecode> ReadDecode(const nlohmann::json& json) {
  GoldenDecode decode;
  for (const auto& [name, value] : json.at("options").items()) {
    if (!ReadOption(name, value, &decode.options)) {
      return Bad(absl::StrCat("golden.json: option '", name, "' is not supported by golden_test"));
    }
  }
  for (const auto& row : json.at("rows")) {
    decode.rows.emplace_back();
    decode.rows.back().sequences = row.at("sequences").get<TokenRows>();
    if (row.contains("scores") && !row["scores"].is_null()) {
      decode.rows.back().scores = row["scores"].get<std::vector<double>>();
    }
    if (row.contains("smallest_gap")) decode.rows.back().smallest_gap = row["smallest_gap"];
  }
  return decode;
}

absl::Status ReadJson(GoldenCase* c) {
  absl::StatusOr<nlohmann::json> json =
      ReadJsonFile(absl::StrCat(c->directory, "/golden.json"), kMaxFileBytes);
  if (!json.ok()) return json.status();
  try {
    c->kind = json->at("kind").get<std::string>();
    for (const auto& decode : json->value("decodes", nlohmann::json::array())) {
      absl::StatusOr<GoldenDecode> read = ReadDecode(decode);
      if (!read.ok()) return read.status();
      c->decodes.push_back(*std::move(read));
    }
    if (json->contains("greedy")) {
      c->greedy = json->at("greedy").at("sequences").get<TokenRows>();
      c->greedy_max_new = json->at("greedy").at("max_new").get<int64_t>();
    }
  } catch (const nlohmann::json::exception& e) {
    return Bad(absl::StrCat("golden.json: ", e.what()));
  }
  if (!c->greedy.empty() && c->greedy_max_new < 2) {
    return Bad(absl::StrCat("golden.json: greedy: max_new ", c->greedy_max_new, " is below 2"));
  }
  for (const GoldenDecode& decode : c->decodes) {
    if (decode.rows.size() != c->inputs.size()) {
      return Bad(absl::StrCat("golden.json: decodes: expected ", c->inputs.size(), " rows, got ",
                              decode.rows.size()));
    }
  }
  if (!c->greedy.empty() && c->greedy.size() != c->inputs.size()) {
    return Bad(absl::StrCat("golden.json: greedy: expected ", c->inputs.size(), " rows, got ",
                            c->greedy.size()));
  }
  return absl::OkStatus();
}

absl::Status ReadBf16(GoldenCase* c) {
  const std::string path = absl::StrCat(c->directory, "/bf16.json");
  if (!std::filesystem::exists(path)) return absl::OkStatus();
  absl::StatusOr<nlohmann::json> json = ReadJsonFile(path, kMaxFileBytes);
  if (!json.ok()) return json.status();
  try {
    for (const auto& [name, error] : json->at("reference").items()) {
      c->bf16[name] = {.reference = error.get<double>(),
                       .f32_residual = json->at("f32_residual").at(name).get<double>()};
    }
  } catch (const nlohmann::json::exception& e) {
    return Bad(absl::StrCat("bf16.json: ", e.what()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GoldenCase> ReadGoldenCase(const std::string& directory) {
  GoldenCase c;
  c.directory = directory;
  c.name = std::filesystem::path(directory).filename().string();
  absl::Status status = ReadTensors(&c);
  if (status.ok()) status = ReadJson(&c);
  if (status.ok()) status = ReadBf16(&c);
  if (!status.ok()) return status;
  return c;
}

}  // namespace quintet
