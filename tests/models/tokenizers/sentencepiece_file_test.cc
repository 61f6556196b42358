#include "models/tokenizers/sentencepiece_file.h"

#include <cstring>
#include <random>
#include <string>

#include "tests/catch.h"
#include "tests/models/tokenizers/sentencepiece.pb.h"

namespace quintet {
namespace {

std::string RandomBytes(std::mt19937* random, size_t most) {
  std::string bytes((*random)() % (most + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  return bytes;
}

spm::Model RandomModel(std::mt19937* random) {
  spm::Model model;
  for (size_t i = (*random)() % 20; i > 0; --i) {
    spm::Model::Piece* piece = model.add_pieces();
    if ((*random)() % 8 != 0) piece->set_piece(RandomBytes(random, 300));
    if ((*random)() % 4 != 0) piece->set_score(static_cast<float>((*random)()) - 1e9F);
    if ((*random)() % 4 != 0) piece->set_type(static_cast<int32_t>((*random)()));
  }
  if ((*random)() % 2 == 0) {
    model.mutable_normalizer_spec()->set_precompiled_charsmap(RandomBytes(random, 70'000));
  }
  return model;
}

// Compares a model as the protobuf library reads it (`wanted`) with the result of
// ReadSentencePieceFile.
void CheckEqual(const spm::Model& wanted, const SentencePieceFile& got) {
  REQUIRE(got.pieces.size() == static_cast<size_t>(wanted.pieces_size()));
  bool equal = got.charsmap == wanted.normalizer_spec().precompiled_charsmap();
  for (int i = 0; i < wanted.pieces_size(); ++i) {
    const SentencePieceFile::Piece& piece = got.pieces[static_cast<size_t>(i)];
    const float score = wanted.pieces(i).score();
    equal &= piece.piece == wanted.pieces(i).piece() && piece.type == wanted.pieces(i).type();
    equal &= std::memcmp(&piece.score, &score, sizeof(score)) == 0;
  }
  CHECK(equal);
}

TEST_CASE("Files that the protobuf library writes are read", "[tokenizer]") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const spm::Model model = RandomModel(&random);
    const std::string bytes = model.SerializeAsString();
    const std::optional<SentencePieceFile> file = ReadSentencePieceFile(bytes);
    REQUIRE(file.has_value());
    CheckEqual(model, *file);
  }
}

TEST_CASE("Unknown fields are skipped, and the last one of several counts", "[tokenizer]") {
  // The unknown field 9 with each of the types varint, 64 bits, bytes and 32 bits; a piece with two
  // texts ("x", then "a") and two types (4, then 2); and a field 1 that is a number, not a piece.
  const std::string bytes(
      "\x48\x96\x01\x49"
      "12345678"
      "\x4A\x03"
      "abc"
      "\x4D"
      "1234"
      "\x0A\x0A\x0A\x01x\x0A\x01"
      "a\x18\x04\x18\x02\x08\x05",
      36);
  const std::optional<SentencePieceFile> file = ReadSentencePieceFile(bytes);
  REQUIRE(file.has_value());
  REQUIRE(file->pieces.size() == 1);
  CHECK(file->pieces[0].piece == "a");
  CHECK(file->pieces[0].type == 2);
  CHECK(file->pieces[0].score == 0);
}

TEST_CASE("Damaged bytes are read as the protobuf library reads them, or refused", "[tokenizer]") {
  std::mt19937 random(2);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = RandomModel(&random).SerializeAsString();
    if (bytes.empty()) continue;
    if (random() % 2 == 0) bytes.resize(1 + random() % bytes.size());
    for (size_t i = random() % 4; i > 0; --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    spm::Model wanted;
    const bool good = wanted.ParseFromString(bytes);
    const std::optional<SentencePieceFile> file = ReadSentencePieceFile(bytes);
    (file.has_value() ? accepted : refused) += 1;
    if (!file.has_value()) continue;  // groups, which the library skips, are refused
    REQUIRE(good);
    CheckEqual(wanted, *file);
  }
  CHECK(accepted > 100);
  CHECK(refused > 100);
}

}  // namespace
}  // namespace quintet
