// Tokenizes lines for comparison with the reference libraries (tools/tokenizer_oracle.py), and
// measures how long it takes to tokenize single long words.
//
//   tokenizer_dump DIR < INPUT > OUTPUT
//
// DIR is a model directory. Each line of input and output is a JSON object:
//   {"text": ".."}                     -> {"ids", "plain", "spans", "skip", "keep"}
//   {"ids": [..]}                      -> {"skip", "keep"}
//   {"repeat": "a", "bytes": 1000000}  -> {"tokens", "milliseconds"}
// plain: ids without special tokens. skip: text decoded without special tokens. keep: text decoded
// with them.
// milliseconds: thread CPU time, the best of three runs.
#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "models/checkpoint/json.h"
#include "models/tokenizers/tokenizer.h"

namespace {

using Json = nlohmann::json;

double ThreadMilliseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

Json DecodeBoth(const quintet::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return {{"skip", tokenizer.Decode(ids, true)}, {"keep", tokenizer.Decode(ids, false)}};
}

Json EncodeText(const quintet::Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> ids = tokenizer.Encode(text, true).value();
  Json answer = DecodeBoth(tokenizer, ids);
  answer["ids"] = ids;
  answer["plain"] = tokenizer.Encode(text, false).value();
  const std::vector<quintet::TokenSpan> found = tokenizer.EncodeWithSpans(text, false).value();
  std::vector<int32_t> spans;
  for (const quintet::TokenSpan& span : found) {
    spans.push_back(static_cast<int32_t>(span.begin_byte));
    spans.push_back(static_cast<int32_t>(span.end_byte));
  }
  answer["spans"] = spans;
  return answer;
}

Json Time(const quintet::Tokenizer& tokenizer, const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  double best = 1e30;
  size_t tokens = 0;
  for (int i = 0; i < 3; ++i) {
    const double start = ThreadMilliseconds();
    tokens = tokenizer.Encode(text, true).value().size();
    best = std::min(best, ThreadMilliseconds() - start);
  }
  return {{"tokens", tokens}, {"milliseconds", best}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenizer_dump DIR < lines > lines\n";
    return 2;
  }
  auto tokenizer = quintet::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 3;
  }
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto request = quintet::ParseJson(line, "line");
    if (!request.ok()) {
      std::cerr << request.status() << "\n";
      return 1;
    }
    Json answer;
    if (request->contains("text")) {
      answer = EncodeText(**tokenizer, (*request)["text"]);
    } else if (request->contains("repeat")) {
      answer = Time(**tokenizer, (*request)["repeat"], (*request)["bytes"]);
    } else {
      answer = DecodeBoth(**tokenizer, (*request)["ids"]);
    }
    std::cout << answer.dump() << "\n";
  }
  return 0;
}
