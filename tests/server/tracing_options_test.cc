#include "server/tracing_options.h"

#include <map>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

using Variables = std::map<std::string, std::string>;

absl::StatusOr<std::optional<TracingOptions>> Read(const Variables& variables) {
  return ReadTracingOptions(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      "1.2.3");
}

// Reads `variables` and an endpoint; they must be valid.
TracingOptions ReadWithEndpoint(Variables variables) {
  variables.emplace("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
  const auto options = Read(variables);
  INFO(options.status().ToString());
  REQUIRE(options.ok());
  REQUIRE(options->has_value());
  return **options;
}

std::string TextOf(const HttpUrl& url) {
  return (url.tls ? "https://" : "http://") + url.HostField() + url.target;
}

TEST_CASE("Requests are traced only if there is an endpoint", "[trace]") {
  for (const Variables& variables :
       {Variables{},
        {{"OTEL_EXPORTER_OTLP_ENDPOINT", ""}},
        {{"OTEL_TRACES_SAMPLER", "always_on"}, {"OTEL_TRACES_EXPORTER", "otlp"}},
        {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1"}, {"OTEL_SDK_DISABLED", "TRUE"}},
        {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1"}, {"OTEL_TRACES_EXPORTER", "none"}}}) {
    const auto options = Read(variables);
    REQUIRE(options.ok());
    CHECK_FALSE(options->has_value());
  }
  CHECK(*MakeTracer(std::nullopt) == nullptr);
}

TEST_CASE("The endpoint of all signals gets the path of traces, that of traces is used as it is",
          "[trace]") {
  const auto url = [](const Variables& variables) {
    const auto options = Read(variables);
    REQUIRE(options.ok());
    return TextOf((*options)->exporter.http.url);
  };
  CHECK(url({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"}}) ==
        "http://collector:4318/v1/traces");
  CHECK(url({{"OTEL_EXPORTER_OTLP_ENDPOINT", " https://collector/otlp/ "}}) ==
        "https://collector:443/otlp/v1/traces");
  CHECK(url({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://other:1"},
             {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/custom?x=1"}}) ==
        "http://collector:4318/custom?x=1");
  CHECK(url({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://[::1]:4318"}}) == "http://[::1]:4318/");
}

TEST_CASE("The defaults record all traces, by the names of this program", "[trace]") {
  const TracingOptions options = ReadWithEndpoint({});
  CHECK(options.sampler.parent_based);
  CHECK(options.sampler.ratio == 1);
  CHECK_FALSE(options.exporter.gzip);
  CHECK(options.exporter.timeout == std::chrono::seconds(10));
  CHECK(options.exporter.http.headers.empty());
  const ResourceAttributes& resource = options.exporter.resource;
  REQUIRE(resource.size() == 3);
  CHECK(resource[0] == std::pair<std::string, std::string>("service.name", "quintet"));
  CHECK(resource[1] == std::pair<std::string, std::string>("service.version", "1.2.3"));
  CHECK(resource[2].first == "service.instance.id");
  CHECK(resource[2].second.size() == 36);
  CHECK(resource[2].second[14] == '4');
  CHECK(ReadWithEndpoint({}).exporter.resource[2] != resource[2]);
}

TEST_CASE("Samplers have OpenTelemetry's names", "[trace]") {
  const auto sampler = [](const std::string& name, const std::string& argument = "") {
    const SamplerOptions options =
        ReadWithEndpoint({{"OTEL_TRACES_SAMPLER", name}, {"OTEL_TRACES_SAMPLER_ARG", argument}})
            .sampler;
    return std::pair(options.parent_based, options.ratio);
  };
  CHECK(sampler("always_on") == std::pair(false, 1.0));
  CHECK(sampler("always_off") == std::pair(false, 0.0));
  CHECK(sampler("traceidratio", "0.25") == std::pair(false, 0.25));
  CHECK(sampler("traceidratio") == std::pair(false, 1.0));
  CHECK(sampler("parentbased_always_on", "0.5") == std::pair(true, 1.0));
  CHECK(sampler("parentbased_always_off") == std::pair(true, 0.0));
  CHECK(sampler("parentbased_traceidratio", "0.01") == std::pair(true, 0.01));
}

TEST_CASE("Headers and resource attributes are decoded", "[trace]") {
  const TracingOptions options = ReadWithEndpoint(
      {{"OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20abc=, x-scope = 7 ,"},
       {"OTEL_RESOURCE_ATTRIBUTES",
        "service.name=ignored,deployment.environment.name=a%2Cb,"
        "service.instance.id=pod-1"},
       {"OTEL_SERVICE_NAME", "translate"},
       {"OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"},
       {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"},
       {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"}});
  CHECK(options.exporter.http.headers ==
        HttpPostClient::Headers{{"Authorization", "Bearer abc="}, {"x-scope", "7"}});
  CHECK(options.exporter.resource == ResourceAttributes{{"service.name", "translate"},
                                                        {"service.version", "1.2.3"},
                                                        {"service.instance.id", "pod-1"},
                                                        {"deployment.environment.name", "a,b"}});
  CHECK(options.exporter.gzip);
  CHECK(options.exporter.timeout == std::chrono::milliseconds(250));
}

TEST_CASE("A variable with a value that is not supported is an error that names it", "[trace]") {
  const std::pair<const char*, const char*> kBad[] = {
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"},
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector"},
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://"},
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:0"},
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:65536"},
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/a b"},
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@collector:4318"},
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1"},
      {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a\r\nX: y"},
      {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
      {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"},
      {"OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"},
      {"OTEL_EXPORTER_OTLP_TIMEOUT", "0"},
      {"OTEL_EXPORTER_OTLP_TIMEOUT", "10s"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "secret"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "a=%0d%0asecret: b"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "a b=secret"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "a=secret%2"},
      {"OTEL_RESOURCE_ATTRIBUTES", "=secret"},
      {"OTEL_TRACES_EXPORTER", "zipkin"},
      {"OTEL_TRACES_SAMPLER", "xray"},
      {"OTEL_TRACES_SAMPLER_ARG", "1.5"},
      {"OTEL_TRACES_SAMPLER_ARG", "-0.1"},
      {"OTEL_TRACES_SAMPLER_ARG", "nan"},
      {"OTEL_TRACES_SAMPLER_ARG", "a tenth"}};
  for (const auto& [name, value] : kBad) {
    INFO(name << "=" << value);
    const auto options = Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"},
                               {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"}});
    REQUIRE(options.ok());
    Variables variables = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"},
                           {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"}};
    variables[name] = value;
    const absl::Status status = Read(variables).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(status.message().find(std::string(name) + ": expected ") == 0);
    CHECK(status.message().find("secret") == std::string::npos);
  }
}

TEST_CASE("A CA file that cannot be used is an error", "[trace]") {
  const TracingOptions options =
      ReadWithEndpoint({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector"},
                        {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/nonexistent.pem"}});
  const absl::Status status = MakeTracer(options).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message().find("OTEL_EXPORTER_OTLP_CERTIFICATE: ") == 0);
}

}  // namespace
}  // namespace quintet
