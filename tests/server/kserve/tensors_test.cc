#include "server/kserve/tensors.h"

#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/server/kserve/parse_request.h"

namespace quintet {
namespace {

constexpr InputTensors::Spec kSpecs[] = {
    {"text", kserve::TYPE_STRING}, {"ids", kserve::TYPE_INT32}, {"flag", kserve::TYPE_BOOL}};

TEST_CASE("raw and typed contents are read as the same elements", "[kserve]") {
  for (const char* text : {R"(inputs { name: "text" datatype: "BYTES" shape: [2]
             contents { bytes_contents: "a" bytes_contents: "" } }
           inputs { name: "ids" datatype: "INT32" shape: [1, 2] contents { int_contents: [-1, 7] } }
           inputs { name: "flag" datatype: "BOOL" shape: 1 contents { bool_contents: true } })",
                           R"(inputs { name: "text" datatype: "BYTES" shape: [2] }
           inputs { name: "ids" datatype: "INT64" shape: [1, 2] }
           inputs { name: "flag" datatype: "BOOL" shape: 1 }
           raw_input_contents: "\001\000\000\000a\000\000\000\000"
           raw_input_contents:
             "\377\377\377\377\377\377\377\377\007\000\000\000\000\000\000\000"
           raw_input_contents: "\001")"}) {
    const kserve::ModelInferRequest request = ParseRequest(text);
    const absl::StatusOr<InputTensors> tensors = InputTensors::Read(request, kSpecs);
    REQUIRE(tensors.status() == absl::OkStatus());
    CHECK(tensors->typed() == (request.raw_input_contents_size() == 0));
    CHECK(tensors->Find("text")->Strings() == std::vector<absl::string_view>{"a", ""});
    CHECK(tensors->Find("ids")->shape() == std::vector<int64_t>{1, 2});
    CHECK(tensors->Find("ids")->Integer(0) == -1);
    CHECK(tensors->Find("ids")->Integer(1) == 7);
    CHECK(tensors->Find("flag")->Integer(0) == 1);
    CHECK(tensors->Find("other") == nullptr);
  }
}

TEST_CASE("raw strings are refused at every length but their own", "[kserve]") {
  const std::string whole = RawStrings(std::vector<std::string>{"ab", "", "c"});
  const auto read = [](const std::string& raw) {
    kserve::ModelInferRequest request =
        ParseRequest(R"(inputs { name: "text" datatype: "BYTES" shape: 3 })");
    request.add_raw_input_contents(raw);
    return InputTensors::Read(request, kSpecs).status();
  };
  CHECK(read(whole) == absl::OkStatus());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    CHECK(absl::IsInvalidArgument(read(whole.substr(0, bytes))));
  }
  CHECK(absl::IsInvalidArgument(read(whole + '\0')));
}

TEST_CASE("outputs have one form, raw or typed", "[kserve]") {
  for (const bool typed : {false, true}) {
    kserve::ModelInferResponse response;
    OutputTensors outputs(typed, &response);
    outputs.Strings("s", {2, 1}, std::vector<std::string>{"a", "bc"});
    outputs.Int32("i", {2}, std::vector<int32_t>{1, -1});
    outputs.Uint64("u", {1}, std::vector<uint64_t>{uint64_t{1} << 63});
    outputs.Fp32("f", {1, 1}, std::vector<float>{0.5f});
    outputs.Fp64("d", {1}, std::vector<double>{0.25});
    outputs.Raw("r", kserve::TYPE_FP32, {1}, std::string("\0\0\x80\x3f", 4));
    REQUIRE(response.outputs_size() == 6);
    CHECK(response.outputs(0).datatype() == "BYTES");
    CHECK(response.outputs(0).shape_size() == 2);
    CHECK(response.raw_output_contents_size() == (typed ? 0 : 6));
    if (typed) {
      CHECK(response.outputs(0).contents().bytes_contents(1) == "bc");
      CHECK(response.outputs(1).contents().int_contents(1) == -1);
      CHECK(response.outputs(2).contents().uint64_contents(0) == uint64_t{1} << 63);
      CHECK(response.outputs(3).contents().fp32_contents(0) == 0.5f);
      CHECK(response.outputs(4).contents().fp64_contents(0) == 0.25);
      CHECK(response.outputs(5).contents().fp32_contents(0) == 1.0f);
    } else {
      CHECK(response.raw_output_contents(0) == std::string("\1\0\0\0a\2\0\0\0bc", 11));
      CHECK(response.raw_output_contents(1) == std::string("\1\0\0\0\xff\xff\xff\xff", 8));
      CHECK(response.raw_output_contents(2).size() == 8);
      CHECK(response.raw_output_contents(4).size() == 8);
    }
  }
}

}  // namespace
}  // namespace quintet
