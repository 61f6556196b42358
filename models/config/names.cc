#include "models/config/config.h"

namespace quintet {

const char* FamilyName(Family family) {
  switch (family) {
    case Family::kT5:
      return "t5";
    case Family::kMT5:
      return "mt5";
    case Family::kUMT5:
      return "umt5";
    case Family::kLongT5:
      return "longt5";
    case Family::kFat5:
      return "flash_t5";
    case Family::kGpt2:
      return "gpt2";
  }
  return "?";
}

const char* HeadName(Head head) {
  switch (head) {
    case Head::kNone:
      return "none";
    case Head::kLanguageModel:
      return "language model";
    case Head::kEncoder:
      return "encoder";
    case Head::kSequenceClassification:
      return "sequence classification";
    case Head::kTokenClassification:
      return "token classification";
    case Head::kQuestionAnswering:
      return "question answering";
  }
  return "?";
}

}  // namespace quintet
