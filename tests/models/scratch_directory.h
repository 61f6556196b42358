// A temporary directory that its destructor removes; reading and writing of text files.
#pragma once

#include <string>
#include <vector>

namespace quintet {

class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> Entries() const;  // sorted

 private:
  std::string path_;
};

void WriteText(const std::string& path, const std::string& text);
std::string ReadText(const std::string& path);  // empty if there is no such file
std::string Sha256OfFile(const std::string& path);

}  // namespace quintet
