#include "models/checkpoint/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

// SAX handler that builds the JSON value. Unlike nlohmann's own builder it checks the nesting depth
// and rejects duplicate keys. nlohmann's SAX parser is not recursive, so deep nesting does not
// overflow the stack.
class CheckedBuilder : public nlohmann::json_sax<Json> {
 public:
  CheckedBuilder(std::string where, int max_depth)
      : where_(std::move(where)), max_depth_(max_depth) {}
  ~CheckedBuilder() override { ClearJson(&root_); }  // of text that is not valid

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary value: expected JSON text"); }

  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& value) override {
    auto [it, fresh] = open_.back()->get_ref<Json::object_t&>().try_emplace(value, nullptr);
    if (!fresh) {
      return Fail(absl::StrCat("key \"", value.substr(0, 64),
                               "\" twice in one object: expected each key once"));
    }
    slot_ = &it->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // error.what() is "[json.exception.parse_error.101] parse error at line 1, column 2: ...".
    // Remove the part in brackets.
    std::string_view what = error.what();
    const size_t bracket = what.find("] ");
    if (bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    return Fail(absl::StrCat("not JSON at byte ", position, ": ",
                             absl::string_view(what.data(), what.size()).substr(0, 300)));
  }

  absl::StatusOr<Json> Result() && {
    QT_RETURN_IF_ERROR(status_);
    return std::move(root_);
  }

 private:
  // Returns where to store the next value: the root, the value of the last key, or a new array
  // element.
  Json* Next() {
    if (open_.empty()) return &root_;
    if (open_.back()->is_object()) return slot_;
    auto& array = open_.back()->get_ref<Json::array_t&>();
    array.emplace_back();
    return &array.back();
  }

  template <typename T>
  bool Put(T&& value) {
    *Next() = std::forward<T>(value);
    return true;
  }

  bool Open(Json container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return Fail(absl::StrCat("nesting deeper than ", max_depth_, " levels"));
    }
    Json* place = Next();
    *place = std::move(container);
    open_.push_back(place);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  bool Fail(const std::string& message) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", message));
    return false;
  }

  std::string where_;
  int max_depth_;
  Json root_;
  // Objects and arrays that are still open, outermost first. The pointers stay valid, because an
  // array grows only while it is the innermost open container.
  std::vector<Json*> open_;
  Json* slot_ = nullptr;
  absl::Status status_;
};

std::string BaseName(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace

void ClearJson(Json* value) noexcept {
  if (value->is_array()) {
    auto& elements = value->get_ref<Json::array_t&>();
    for (Json& element : elements) ClearJson(&element);
    elements.clear();  // no element has elements of its own, so that none allocates
  } else if (value->is_object()) {
    auto& members = value->get_ref<Json::object_t&>();
    for (auto& [name, member] : members) ClearJson(&member);
    members.clear();
  }
}

void JsonDocument::Clear() noexcept {
  ClearJson(&value_);
  value_ = nullptr;
}

absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& where, int max_depth) {
  // A NUL byte is invalid in JSON, but nlohmann's lexer would treat it as the end of the input.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": not JSON at byte ", nul + 1, ": NUL"));
  }
  CheckedBuilder builder(where, max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    QT_RETURN_IF_ERROR(std::move(builder).Result().status());
    return absl::InvalidArgumentError(absl::StrCat(where, ": not JSON"));
  }
  return std::move(builder).Result();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  const std::string name = BaseName(path);
  // O_NONBLOCK, so that open() returns at once for a FIFO, too (it is rejected below).
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;  // StrCat may change errno
    const std::string message = absl::StrCat(name, ": cannot open: ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
  }
  auto result = CatchOutOfMemory([&]() -> absl::StatusOr<std::string> {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected a regular file"));
    }
    if (info.st_size > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": expected at most ", max_bytes, " bytes, got ", info.st_size));
    }
    std::string text(static_cast<size_t>(info.st_size), '\0');
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t count =
          pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        return absl::InvalidArgumentError(
            absl::StrCat(name, ": cannot read: ", std::strerror(errno)));
      if (count == 0) break;  // the file was truncated after fstat
      done += static_cast<size_t>(count);
    }
    text.resize(done);
    return text;
  });
  close(fd);
  return result;
}

absl::StatusOr<Json> ReadJsonFile(const std::string& path, int64_t max_bytes, int max_depth) {
  QT_ASSIGN_OR_RETURN(std::string text, ReadFile(path, max_bytes));
  return ParseJson(text, BaseName(path), max_depth);
}

}  // namespace quintet
