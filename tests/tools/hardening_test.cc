// Tests that the quintet binary has the exploit mitigations (full RELRO and others) that the root
// CMakeLists.txt enables.
#include <cstdio>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

// Returns what `readelf` (binutils) with the options `flags` prints about the binary.
std::string ReadElf(const std::string& flags) {
  FILE* output = popen(("LC_ALL=C readelf -W " + flags + " " QUINTET_BINARY).c_str(), "r");
  REQUIRE(output != nullptr);
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), output)) > 0;) text.append(buffer, n);
  REQUIRE(pclose(output) == 0);
  return text;
}

// Returns the first line of `text` that contains `words`; "" if there is none.
std::string LineWith(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  if (at == std::string::npos) return "";
  const size_t begin = text.rfind('\n', at) + 1;  // npos + 1 is 0
  return text.substr(begin, text.find('\n', at) - begin);
}

bool Contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST_CASE("The binary is position independent and has full RELRO") {
  CHECK(Contains(LineWith(ReadElf("-h"), "Type:"), "DYN"));
  const std::string dynamic = ReadElf("-d");
  CHECK(Contains(LineWith(dynamic, "FLAGS_1"), "NOW PIE"));
  CHECK(Contains(dynamic, "BIND_NOW"));
  CHECK_FALSE(Contains(dynamic, "TEXTREL"));
  const std::string segments = ReadElf("-l");
  CHECK(LineWith(segments, "GNU_RELRO") != "");
  CHECK(Contains(LineWith(segments, "GNU_STACK"), " RW "));
  CHECK_FALSE(Contains(segments, " RWE "));
}

TEST_CASE("The binary has stack canaries") {
  CHECK(Contains(ReadElf("--dyn-syms"), " __stack_chk_fail@"));
}

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("The binary calls the checked versions of libc's functions") {
  const std::string symbols = ReadElf("--dyn-syms");
#ifdef __clang__  // glibc 2.36 checks the printf family with GCC only
  const char* const functions[] = {" __memcpy_chk@"};
#else
  const char* const functions[] = {" __memcpy_chk@", " __printf_chk@", " __fprintf_chk@"};
#endif
  for (const char* checked : functions) {
    INFO(checked);
    CHECK(Contains(symbols, checked));
  }
}
#endif

#ifdef __x86_64__
TEST_CASE("The binary is marked for shadow stacks, and its functions for indirect branches") {
  CHECK(Contains(LineWith(ReadElf("-n"), "x86 feature:"), "SHSTK"));
  // main begins with endbr64.
  FILE* output = popen("LC_ALL=C objdump -d --disassemble=main " QUINTET_BINARY, "r");
  REQUIRE(output != nullptr);
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), output)) > 0;) text.append(buffer, n);
  REQUIRE(pclose(output) == 0);
  CHECK(Contains(text.substr(0, text.find("endbr64")), "<main>:"));
  CHECK(Contains(text, "endbr64"));
}
#endif

}  // namespace
}  // namespace quintet
