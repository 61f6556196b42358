#include "server/tracing_options.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

constexpr char kExporter[] = "OTEL_EXPORTER_OTLP_";
constexpr int64_t kMaxTimeoutMs = 600'000;

using Pairs = std::vector<std::pair<std::string, std::string>>;

absl::Status Bad(absl::string_view variable, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(variable, ": expected ", expected));
}

// The value of a variable and its name, for errors. An empty value counts as unset.
struct Variable {
  std::string name, value;
  bool set() const { return !value.empty(); }
};

Variable Read(const ReadVariable& read, const std::string& name) {
  const char* const value = read(name.c_str());
  return {name, value == nullptr ? "" : std::string(absl::StripAsciiWhitespace(value))};
}

// OTEL_EXPORTER_OTLP_TRACES_<name>, or if that is unset OTEL_EXPORTER_OTLP_<name>.
Variable ReadExporter(const ReadVariable& read, const std::string& name) {
  Variable traces = Read(read, absl::StrCat(kExporter, "TRACES_", name));
  return traces.set() ? traces : Read(read, absl::StrCat(kExporter, name));
}

absl::Status CheckOneOf(const Variable& variable, const std::vector<std::string>& values) {
  if (!variable.set() || std::count(values.begin(), values.end(), variable.value) > 0) {
    return absl::OkStatus();
  }
  return Bad(variable.name,
             absl::StrCat(absl::StrJoin(values, " or "), ", got \"", variable.value, "\""));
}

// Replaces %XX by the byte XX. Returns false if there is another '%'.
bool DecodePercent(absl::string_view text, std::string* to) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      to->push_back(text[i]);
      continue;
    }
    uint32_t byte = 0;
    if (i + 2 >= text.size() || !absl::ascii_isxdigit(text[i + 1]) ||
        !absl::ascii_isxdigit(text[i + 2]) || !absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      return false;
    }
    to->push_back(static_cast<char>(byte));
    i += 2;
  }
  return true;
}

// Parses "key1=value1,key2=value2"; values may contain %XX. The error quotes no value: it may be a
// secret.
absl::StatusOr<Pairs> ReadPairs(const Variable& variable) {
  Pairs pairs;
  for (absl::string_view part : absl::StrSplit(variable.value, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    std::string key(absl::StripAsciiWhitespace(split.first)), value;
    if (!absl::StrContains(part, '=') || key.empty() ||
        !DecodePercent(absl::StripAsciiWhitespace(split.second), &value)) {
      return Bad(variable.name, "KEY=VALUE,KEY=VALUE,... with %XX for special characters");
    }
    pairs.emplace_back(std::move(key), std::move(value));
  }
  return pairs;
}

bool IsFieldName(absl::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) ||
           absl::string_view("!#$%&'*+-.^_`|~").find(c) != absl::string_view::npos;
  });
}

absl::StatusOr<HttpPostClient::Headers> ReadHeaders(const Variable& variable) {
  QT_ASSIGN_OR_RETURN(HttpPostClient::Headers headers, ReadPairs(variable));
  for (const auto& [name, value] : headers) {
    const bool printable =
        std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
    if (!IsFieldName(name) || !printable) {
      return Bad(variable.name, "names and printable values of HTTP headers");
    }
  }
  return headers;
}

absl::StatusOr<HttpUrl> ReadEndpoint(const ReadVariable& read) {
  Variable endpoint = Read(read, absl::StrCat(kExporter, "TRACES_ENDPOINT"));
  const bool whole = endpoint.set();
  if (!whole) endpoint = Read(read, absl::StrCat(kExporter, "ENDPOINT"));
  absl::StatusOr<HttpUrl> url = ParseHttpUrl(endpoint.value);
  if (!url.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(endpoint.name, ": ", url.status().message()));
  }
  if (!whole) {
    absl::StrAppend(&url->target, absl::EndsWith(url->target, "/") ? "" : "/", "v1/traces");
  }
  return url;
}

absl::StatusOr<SamplerOptions> ReadSampler(const ReadVariable& read) {
  const Variable sampler = Read(read, "OTEL_TRACES_SAMPLER");
  const Variable argument = Read(read, "OTEL_TRACES_SAMPLER_ARG");
  QT_RETURN_IF_ERROR(
      CheckOneOf(sampler, {"always_on", "always_off", "traceidratio", "parentbased_always_on",
                           "parentbased_always_off", "parentbased_traceidratio"}));
  SamplerOptions options;
  absl::string_view root = sampler.value;
  options.parent_based = !sampler.set() || absl::ConsumePrefix(&root, "parentbased_");
  if (root == "always_off") options.ratio = 0;
  if (root != "traceidratio" || !argument.set()) return options;
  if (!absl::SimpleAtod(argument.value, &options.ratio) || !(options.ratio >= 0) ||
      !(options.ratio <= 1)) {
    return Bad(argument.name, absl::StrCat("a number in [0, 1], got \"", argument.value, "\""));
  }
  return options;
}

// A UUID of version 4.
std::string RandomUuid() {
  absl::BitGen random;
  std::array<uint8_t, 16> bytes;
  for (uint8_t& byte : bytes) byte = absl::Uniform<uint8_t>(random);
  bytes[6] = static_cast<uint8_t>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<uint8_t>((bytes[8] & 0x3f) | 0x80);
  std::string text = HexText(bytes);
  for (const size_t at : {20, 16, 12, 8}) text.insert(at, "-");
  return text;
}

absl::StatusOr<ResourceAttributes> ReadResource(const ReadVariable& read,
                                                const std::string& version) {
  QT_ASSIGN_OR_RETURN(ResourceAttributes given, ReadPairs(Read(read, "OTEL_RESOURCE_ATTRIBUTES")));
  if (const Variable name = Read(read, "OTEL_SERVICE_NAME"); name.set()) {
    std::erase_if(given, [](const auto& pair) { return pair.first == "service.name"; });
    given.emplace_back("service.name", name.value);
  }
  ResourceAttributes resource = {{"service.name", "quintet"},
                                 {"service.version", version},
                                 {"service.instance.id", RandomUuid()}};
  for (auto& [key, value] : given) {
    const auto same = std::find_if(resource.begin(), resource.end(),
                                   [&key = key](const auto& pair) { return pair.first == key; });
    if (same != resource.end()) {
      same->second = value;
    } else {
      resource.emplace_back(key, value);
    }
  }
  return resource;
}

}  // namespace

absl::StatusOr<std::optional<TracingOptions>> ReadTracingOptions(const ReadVariable& read,
                                                                 const std::string& version) {
  if (!ReadExporter(read, "ENDPOINT").set()) return std::nullopt;
  const Variable disabled = Read(read, "OTEL_SDK_DISABLED");
  if (absl::EqualsIgnoreCase(disabled.value, "true")) return std::nullopt;
  const Variable exporter = Read(read, "OTEL_TRACES_EXPORTER");
  QT_RETURN_IF_ERROR(CheckOneOf(exporter, {"otlp", "none"}));
  if (exporter.value == "none") return std::nullopt;
  TracingOptions options;
  SpanExporter::Options& to = options.exporter;
  QT_ASSIGN_OR_RETURN(to.http.url, ReadEndpoint(read));
  QT_RETURN_IF_ERROR(CheckOneOf(ReadExporter(read, "PROTOCOL"), {"http/json"}));
  const Variable compression = ReadExporter(read, "COMPRESSION");
  QT_RETURN_IF_ERROR(CheckOneOf(compression, {"none", "gzip"}));
  to.gzip = compression.value == "gzip";
  to.http.ca_file = ReadExporter(read, "CERTIFICATE").value;
  QT_ASSIGN_OR_RETURN(to.http.headers, ReadHeaders(ReadExporter(read, "HEADERS")));
  if (const Variable timeout = ReadExporter(read, "TIMEOUT"); timeout.set()) {
    int64_t ms = 0;
    if (!absl::SimpleAtoi(timeout.value, &ms) || ms < 1 || ms > kMaxTimeoutMs) {
      return Bad(timeout.name, absl::StrCat("1 to ", kMaxTimeoutMs, " milliseconds, got \"",
                                            timeout.value, "\""));
    }
    to.timeout = std::chrono::milliseconds(ms);
  }
  QT_ASSIGN_OR_RETURN(to.resource, ReadResource(read, version));
  QT_ASSIGN_OR_RETURN(options.sampler, ReadSampler(read));
  return options;
}

absl::StatusOr<std::unique_ptr<Tracer>> MakeTracer(const std::optional<TracingOptions>& options) {
  if (!options.has_value()) return nullptr;
  absl::StatusOr<std::unique_ptr<SpanExporter>> exporter = SpanExporter::Start(options->exporter);
  if (!exporter.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kExporter, "CERTIFICATE: ", exporter.status().message()));
  }
  return std::make_unique<Tracer>(options->sampler, *std::move(exporter));
}

}  // namespace quintet
