#include "kernels/base/status_macros.h"

#include <memory>
#include <string>
#include <utility>

#include "tests/catch.h"

namespace quintet {
namespace {

const absl::Status kError = absl::NotFoundError("no such file");

// Counts evaluations of an expression in a macro.
class Source {
 public:
  explicit Source(absl::Status status) : status_(std::move(status)) {}

  absl::Status Check() {
    ++evaluations_;
    return status_;
  }
  absl::StatusOr<std::unique_ptr<int>> Make() {
    ++evaluations_;
    if (!status_.ok()) return status_;
    return std::make_unique<int>(7);
  }
  int evaluations() const { return evaluations_; }

 private:
  absl::Status status_;
  int evaluations_ = 0;
};

absl::Status Check(Source* source, bool* passed) {
  QT_RETURN_IF_ERROR(source->Check());
  *passed = true;
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckThenMake(Source* source) {
  QT_RETURN_IF_ERROR(source->Check());
  return "made";
}

// Tests that QT_RETURN_IF_ERROR may stand between an if and its else without braces: the else must
// belong to that if, not to an if inside the macro.
absl::StatusOr<int> CheckWithoutBraces(Source* source, bool check) {
  if (check)
    QT_RETURN_IF_ERROR(source->Check());
  else
    return 2;
  return 1;
}

absl::StatusOr<int> Declare(Source* source) {
  QT_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, source->Make());
  return *value;
}

absl::Status Assign(Source* source, std::unique_ptr<int>* value) {
  QT_ASSIGN_OR_RETURN(*value, source->Make());
  return absl::OkStatus();
}

// Counts in `uses` how often the macro evaluates the target of the assignment.
absl::Status AssignThrough(Source* source, std::unique_ptr<int>* value, int* uses) {
  QT_ASSIGN_OR_RETURN(*(++*uses, value), source->Make());
  return absl::OkStatus();
}

absl::StatusOr<int> Sum(Source* first, Source* second) {
  QT_ASSIGN_OR_RETURN(auto a, first->Make());
  QT_ASSIGN_OR_RETURN(auto b, second->Make());
  return *a + *b;
}

TEST_CASE("QT_RETURN_IF_ERROR continues after OK and returns an error") {
  Source good{absl::OkStatus()}, bad{kError};
  bool passed = false;
  CHECK(Check(&bad, &passed) == kError);
  CHECK_FALSE(passed);
  CHECK(Check(&good, &passed).ok());
  CHECK(passed);
  CHECK(good.evaluations() == 1);
  CHECK(bad.evaluations() == 1);
}

TEST_CASE("QT_RETURN_IF_ERROR returns from a function of a StatusOr") {
  Source good{absl::OkStatus()}, bad{kError};
  CHECK(CheckThenMake(&good).value() == "made");
  CHECK(CheckThenMake(&bad).status() == kError);
}

TEST_CASE("QT_RETURN_IF_ERROR is one statement under an if without braces") {
  Source good{absl::OkStatus()}, bad{kError};
  CHECK(CheckWithoutBraces(&good, true).value() == 1);
  CHECK(CheckWithoutBraces(&bad, true).status() == kError);
  CHECK(CheckWithoutBraces(&bad, false).value() == 2);
  CHECK(bad.evaluations() == 1);
}

TEST_CASE("QT_ASSIGN_OR_RETURN declares a variable of a move-only type") {
  Source good{absl::OkStatus()}, bad{kError};
  CHECK(Declare(&good).value() == 7);
  CHECK(Declare(&bad).status() == kError);
  CHECK(good.evaluations() == 1);
  CHECK(bad.evaluations() == 1);
}

TEST_CASE("QT_ASSIGN_OR_RETURN assigns, and keeps the target's value on failure") {
  Source good{absl::OkStatus()}, bad{kError};
  auto value = std::make_unique<int>(1);
  CHECK(Assign(&bad, &value) == kError);
  REQUIRE(value != nullptr);
  CHECK(*value == 1);
  CHECK(Assign(&good, &value).ok());
  REQUIRE(value != nullptr);
  CHECK(*value == 7);
}

TEST_CASE("QT_ASSIGN_OR_RETURN evaluates its target once, and only on success") {
  Source good{absl::OkStatus()}, bad{kError};
  std::unique_ptr<int> value;
  int uses = 0;
  CHECK(AssignThrough(&bad, &value, &uses) == kError);
  CHECK(uses == 0);
  CHECK(AssignThrough(&good, &value, &uses).ok());
  CHECK(uses == 1);
}

TEST_CASE("QT_ASSIGN_OR_RETURN may be repeated in a scope and returns the first error") {
  Source good{absl::OkStatus()}, bad{kError};
  CHECK(Sum(&good, &good).value() == 14);
  CHECK(Sum(&good, &bad).status() == kError);
  const int evaluations = good.evaluations();
  CHECK(Sum(&bad, &good).status() == kError);
  CHECK(good.evaluations() == evaluations);
}

TEST_CASE("The macros return from a lambda, whose type is absl::Status unless it is given") {
  Source bad{kError};
  const auto assign = [&] {
    QT_ASSIGN_OR_RETURN(auto value, bad.Make());
    return *value == 7 ? absl::OkStatus() : absl::InternalError("not 7");
  };
  CHECK(assign() == kError);
}

}  // namespace
}  // namespace quintet
