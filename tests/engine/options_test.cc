#include "engine/options.h"

#include <cmath>
#include <functional>
#include <limits>

#include "tests/catch.h"

namespace quintet {
namespace {

ModelConfig T5Config() {
  ModelConfig config;
  config.family = Family::kT5;
  config.vocab = 100;
  config.encoder_layers = config.decoder_layers = 2;
  config.pad_id = 0;
  config.decoder_start_id = 0;
  config.eos_ids = {1};
  return config;
}

ModelConfig Gpt2Config() {
  ModelConfig config = T5Config();
  config.family = Family::kGpt2;
  config.encoder_layers = 0;
  config.decoder_start_id = -1;
  config.max_positions = 64;
  return config;
}

struct Case {
  DecodingRequest request;
  GenerationDefaults defaults;
  ModelConfig config = T5Config();
  DecodingLimits limits;
  std::vector<int32_t> input{5, 6, 1};

  absl::StatusOr<DecodingOptions> Resolve() const {
    return ResolveDecoding(request, defaults, config, limits, input);
  }
};

// Checks that the changed options are refused with a message that begins with `field`.
void Refused(const char* field, const std::function<void(Case*)>& change) {
  Case c;
  change(&c);
  const auto options = c.Resolve();
  INFO(field << ": " << (options.ok() ? "accepted" : std::string(options.status().message())));
  REQUIRE_FALSE(options.ok());
  CHECK(options.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(options.status().message()).rfind(field, 0) == 0);
}

DecodingOptions Accepted(const std::function<void(Case*)>& change) {
  Case c;
  change(&c);
  const auto options = c.Resolve();
  INFO(options.status().message());
  REQUIRE(options.ok());
  CHECK(CheckDecoding(*options, c.config.vocab).ok());
  return *options;
}

TEST_CASE("options: built-in defaults apply without other values") {
  const DecodingOptions o = Accepted([](Case*) {});
  CHECK(o.max_new_tokens == 256);
  CHECK(o.num_beams == 1);
  CHECK(o.num_return_sequences == 1);
  CHECK(o.length_penalty == 1.0);
  CHECK(o.early_stopping == EarlyStopping::kHeuristic);
  CHECK_FALSE(o.do_sample);
  CHECK(o.warp.top_k == 50);
  CHECK(o.eos_token_ids == std::vector<int32_t>{1});
  CHECK(o.prompt == std::vector<int32_t>{0});
  CHECK(o.forced_bos_token_id == -1);
}

TEST_CASE("A temperature of 0 turns sampling off, with its other parameters") {
  Case c;
  c.request.do_sample = true;
  c.request.temperature = 0.0;
  c.request.top_k = 5;
  c.request.top_p = 0.5;
  c.request.seed = 3;
  const auto options = c.Resolve();
  REQUIRE(options.ok());
  CHECK_FALSE(options->do_sample);
  c.request.num_return_sequences = 3;
  CHECK(c.Resolve().status().message() ==
        "num_return_sequences: more than 1 needs num_beams or a temperature above 0: 0 is greedy");
  c.request = DecodingRequest();
  c.request.temperature = 0.0;  // without do_sample, where another temperature is an error
  c.defaults.do_sample = true;
  const auto plain = c.Resolve();
  REQUIRE(plain.ok());
  CHECK_FALSE(plain->do_sample);
}

struct FloatField {
  const char* name;
  std::optional<double> DecodingRequest::*field;
  bool sampling, beams;
  std::vector<float> good, bad;
};

TEST_CASE("options: every float field refuses NaN, infinities and values out of range") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<FloatField> fields{
      {"length_penalty",
       &DecodingRequest::length_penalty,
       false,
       true,
       {-10, 0, 10},
       {-10.1f, 10.1f}},
      {"patience", &DecodingRequest::patience, false, true, {0.1f, 1, 4}, {0.09f, 4.1f, 0, -1}},
      {"temperature",
       &DecodingRequest::temperature,
       true,
       false,
       {0.01f, 1, 100},
       {0.009f, 101, -1}},
      {"top_p", &DecodingRequest::top_p, true, false, {0.001f, 1}, {0, 1.001f, -1}},
      {"typical_p", &DecodingRequest::typical_p, true, false, {0.001f, 1}, {0, 1.001f, -1}},
      {"min_p", &DecodingRequest::min_p, true, false, {0, 0.999f}, {1, -0.001f}},
      {"repetition_penalty",
       &DecodingRequest::repetition_penalty,
       false,
       false,
       {0.001f, 10},
       {0, -1, 10.1f}},
  };
  for (const FloatField& f : fields) {
    const auto with = [&f](float value) {
      return [&f, value](Case* c) {
        if (f.sampling) c->request.do_sample = true;
        if (f.beams) c->request.num_beams = 4;
        if (f.beams) c->request.early_stopping = EarlyStopping::kFirst;
        c->request.*f.field = value;
      };
    };
    for (float good : f.good) Accepted(with(good));
    std::vector<float> bad = f.bad;
    bad.insert(bad.end(), {std::nanf(""), kInf, -kInf, 2147483648.0f});
    for (float value : bad) Refused(f.name, with(value));
  }
}

struct IntField {
  const char* name;
  std::optional<int64_t> DecodingRequest::*field;
  std::vector<uint32_t> good, bad;
};

TEST_CASE("options: every integer field refuses values out of range") {
  const uint32_t kHuge = 2147483648u;
  const std::vector<IntField> fields{
      {"max_new_tokens", &DecodingRequest::max_new_tokens, {1, 4096}, {0, 4097, kHuge}},
      {"min_new_tokens", &DecodingRequest::min_new_tokens, {0, 256}, {257, kHuge}},
      {"num_beams", &DecodingRequest::num_beams, {1, 7, 32}, {0, 33, kHuge}},
      {"no_repeat_ngram_size", &DecodingRequest::no_repeat_ngram_size, {0, 64}, {65, kHuge}},
      {"forced_bos_token_id", &DecodingRequest::forced_bos_token_id, {0, 99}, {100, kHuge}},
      {"decoder_start_token_id", &DecodingRequest::decoder_start_token_id, {0, 99}, {100, kHuge}},
      {"pad_token_id", &DecodingRequest::pad_token_id, {0, 99}, {100, kHuge}},
  };
  for (const IntField& f : fields) {
    for (uint32_t good : f.good) Accepted([&](Case* c) { c->request.*f.field = good; });
    for (uint32_t bad : f.bad) Refused(f.name, [&](Case* c) { c->request.*f.field = bad; });
  }
  const auto sampling = [](uint32_t top_k) {
    return [top_k](Case* c) {
      c->request.do_sample = true;
      c->request.top_k = top_k;
    };
  };
  CHECK(Accepted(sampling(0)).warp.top_k == 0);
  CHECK(Accepted(sampling(2147483647u)).warp.top_k == 2147483647);
  Refused("top_k", sampling(kHuge));
  const auto alternatives = [](uint32_t count) {
    return [count](Case* c) {
      c->request.logprobs = true;
      c->request.top_logprobs = count;
    };
  };
  CHECK(Accepted(alternatives(20)).top_logprobs == 20);
  Refused("top_logprobs", alternatives(21));
  Refused("top_logprobs", alternatives(kHuge));
}

TEST_CASE("options: every list of ids is bounded in count and values") {
  struct ListField {
    const char* name;
    std::vector<uint32_t> DecodingRequest::*field;
    size_t limit;
  };
  for (const ListField& f : std::vector<ListField>{
           {"suppress_tokens", &DecodingRequest::suppress_tokens, 1024},
           {"begin_suppress_tokens", &DecodingRequest::begin_suppress_tokens, 1024},
           {"forced_eos_token_ids", &DecodingRequest::forced_eos_token_ids, 16},
           {"eos_token_ids", &DecodingRequest::eos_token_ids, 16}}) {
    Accepted([&](Case* c) { (c->request.*f.field).assign(f.limit, 99); });
    Refused(f.name, [&](Case* c) { (c->request.*f.field).assign(f.limit + 1, 99); });
    Refused(f.name, [&](Case* c) { c->request.*f.field = {3, 100}; });
    Refused(f.name, [&](Case* c) { c->request.*f.field = {4294967295u}; });
  }
  Accepted([](Case* c) { c->request.bad_words_ids.assign(256, std::vector<uint32_t>(32, 7)); });
  Refused("bad_words_ids", [](Case* c) { c->request.bad_words_ids.assign(257, {7}); });
  Refused("bad_words_ids",
          [](Case* c) { c->request.bad_words_ids = {std::vector<uint32_t>(33, 7)}; });
  Refused("bad_words_ids", [](Case* c) { c->request.bad_words_ids = {{}}; });
  Refused("bad_words_ids", [](Case* c) { c->request.bad_words_ids = {{3, 100}}; });
  Refused("decoder_prefix", [](Case* c) { c->request.decoder_prefix = {-1}; });
  Refused("decoder_prefix", [](Case* c) { c->request.decoder_prefix = {100}; });
  CHECK(Accepted([](Case* c) {
          c->request.decoder_prefix = {4, 9};
        }).prompt == std::vector<int32_t>{0, 4, 9});
  CHECK(Accepted([](Case* c) {
          c->request.eos_token_ids = {4, 4, 9, 4};
        }).eos_token_ids == std::vector<int32_t>{4, 9});
}

TEST_CASE("options: stop strings are bounded in count and size") {
  Accepted([](Case* c) { c->request.stop.assign(16, std::string(256, 'x')); });
  Refused("stop", [](Case* c) { c->request.stop.assign(17, "x"); });
  Refused("stop", [](Case* c) { c->request.stop = {""}; });
  Refused("stop", [](Case* c) { c->request.stop = {std::string(257, 'x')}; });
  Refused("include_stop", [](Case* c) { c->request.include_stop = true; });
}

TEST_CASE("options: an explicitly set field without effect is an error") {
  Refused("temperature", [](Case* c) { c->request.temperature = 1.0f; });
  Refused("top_k", [](Case* c) { c->request.top_k = 3; });
  Refused("top_p", [](Case* c) { c->request.top_p = 0.5f; });
  Refused("typical_p", [](Case* c) { c->request.typical_p = 0.5f; });
  Refused("min_p", [](Case* c) { c->request.min_p = 0.5f; });
  Refused("seed", [](Case* c) { c->request.seed = 3; });
  Refused("length_penalty", [](Case* c) { c->request.length_penalty = 2.0f; });
  Refused("early_stopping", [](Case* c) { c->request.early_stopping = EarlyStopping::kFirst; });
  Refused("patience", [](Case* c) { c->request.patience = 1.0f; });
  Refused("return_scores", [](Case* c) { c->request.return_scores = true; });
  Refused("top_logprobs", [](Case* c) { c->request.top_logprobs = 3; });
  Refused("eos_token_ids", [](Case* c) {
    c->request.ignore_eos = true;
    c->request.eos_token_ids = {1};
  });
  Refused("min_new_tokens", [](Case* c) {
    c->request.ignore_eos = true;
    c->request.min_new_tokens = 2;
  });
  Refused("forced_bos_token_id", [](Case* c) {
    c->request.decoder_prefix = {4};
    c->request.forced_bos_token_id = 4;
  });
  const auto causal = [](const std::function<void(DecodingRequest*)>& change) {
    return [change](Case* c) {
      c->config = Gpt2Config();
      change(&c->request);
    };
  };
  Refused("decoder_prefix", causal([](DecodingRequest* r) { r->decoder_prefix = {4}; }));
  Refused("decoder_start_token_id",
          causal([](DecodingRequest* r) { r->decoder_start_token_id = 4; }));
  Refused("forced_bos_token_id", causal([](DecodingRequest* r) { r->forced_bos_token_id = 4; }));
}

TEST_CASE("options: num_return_sequences is limited by beams or samples") {
  const auto with = [](uint32_t beams, bool sample, uint32_t count) {
    return [=](Case* c) {
      c->request.num_beams = beams;
      c->request.do_sample = sample;
      c->request.num_return_sequences = count;
    };
  };
  Accepted(with(1, false, 1));
  Accepted(with(1, true, 16));
  Accepted(with(4, false, 4));
  Accepted(with(32, true, 32));
  for (uint32_t bad : {0u, 2u, 2147483648u}) Refused("num_return_sequences", with(1, false, bad));
  Refused("num_return_sequences", with(1, true, 17));
  Refused("num_return_sequences", with(4, false, 5));
  Refused("num_return_sequences", [&](Case* c) {
    with(4, false, 3)(c);
    c->request.early_stopping = EarlyStopping::kFirst;
    c->request.patience = 0.5f;  // pool of two for three sequences
  });
  Refused("patience", [](Case* c) {
    c->request.num_beams = 4;
    c->request.patience = 2.0f;  // without early_stopping FIRST
  });
}

TEST_CASE("options: requests override generation_config.json, which overrides built-in defaults") {
  const auto file = [](Case* c) {
    c->defaults.max_new_tokens = 30;
    c->defaults.num_beams = 4;
    c->defaults.num_return_sequences = 4;
    c->defaults.length_penalty = 0.6;
    c->defaults.early_stopping = EarlyStopping::kFirst;
    c->defaults.eos_token_ids = {7, 8};
    c->defaults.decoder_start_token_id = 9;
    c->defaults.temperature = 0.7;
    c->defaults.suppress_tokens = {3};
    c->defaults.bad_words_ids = {{3, 4}};
    c->defaults.forced_bos_token_id = 11;
  };
  DecodingOptions o = Accepted(file);
  CHECK(o.max_new_tokens == 30);
  CHECK(o.num_beams == 4);
  CHECK(o.num_return_sequences == 4);
  CHECK(o.length_penalty == 0.6);
  CHECK(o.early_stopping == EarlyStopping::kFirst);
  CHECK(o.eos_token_ids == std::vector<int32_t>{7, 8});
  CHECK(o.prompt == std::vector<int32_t>{9});
  CHECK(o.suppress_tokens == std::vector<int32_t>{3});
  CHECK(o.bad_words_ids == std::vector<std::vector<int32_t>>{{3, 4}});
  CHECK(o.forced_bos_token_id == 11);
  o = Accepted([&](Case* c) {
    file(c);
    c->request.max_new_tokens = 5;
    c->request.num_beams = 1;  // fewer than the file's four sequences
    c->request.eos_token_ids = {2};
    c->request.decoder_start_token_id = 3;
    c->request.suppress_tokens = {5, 6};
  });
  CHECK(o.max_new_tokens == 5);
  CHECK(o.num_beams == 1);
  CHECK(o.num_return_sequences == 1);
  CHECK(o.eos_token_ids == std::vector<int32_t>{2});
  CHECK(o.prompt == std::vector<int32_t>{3});
  CHECK(o.suppress_tokens == std::vector<int32_t>{5, 6});
}

TEST_CASE("options: errors about generation_config.json name the file") {
  Refused("num_beams of generation_config.json", [](Case* c) { c->defaults.num_beams = 64; });
  Refused("top_p of generation_config.json", [](Case* c) {
    c->defaults.do_sample = true;
    c->defaults.top_p = 1.5;
  });
  Refused("suppress_tokens of generation_config.json",
          [](Case* c) { c->defaults.suppress_tokens = {100}; });
  Refused("forced_bos_token_id of generation_config.json",
          [](Case* c) { c->defaults.forced_bos_token_id = 100; });
  Refused("eos_token_ids of the model's files", [](Case* c) { c->defaults.eos_token_ids = {100}; });
  Refused("bad_words_ids", [](Case* c) { c->defaults.bad_words_ids = {{100}}; });
}

TEST_CASE(
    "options: sampling and beam defaults of generation_config.json apply only with sampling or "
    "beams") {
  const auto file = [](Case* c) {
    c->defaults.temperature = 0.0;  // as transformers 4 wrote it with do_sample false
    c->defaults.top_p = 0.0;
    c->defaults.length_penalty = 100.0;
  };
  const DecodingOptions o = Accepted(file);
  CHECK(o.warp.temperature == 1.0f);
  CHECK(o.warp.top_p == 1.0f);
  CHECK(o.length_penalty == 1.0);
  Refused("temperature of generation_config.json", [&](Case* c) {
    file(c);
    c->request.do_sample = true;
  });
  Refused("length_penalty of generation_config.json", [&](Case* c) {
    file(c);
    c->request.num_beams = 2;
  });
}

TEST_CASE("options: lengths of files include the prompt and are clamped") {
  CHECK(Accepted([](Case* c) { c->defaults.max_length = 21; }).max_new_tokens == 20);
  CHECK(Accepted([](Case* c) { c->defaults.max_length = 2; }).max_new_tokens == 1);
  Refused("max_length of generation_config.json", [](Case* c) { c->defaults.max_length = 1; });
  Refused("max_length of generation_config.json", [](Case* c) {
    c->defaults.max_length = 4;
    c->request.decoder_prefix = {3, 4, 5};
  });
  CHECK(Accepted([](Case* c) {
          c->defaults.max_length = 1;
          c->request.max_new_tokens = 7;
        }).max_new_tokens == 7);
  CHECK(Accepted([](Case* c) {
          c->defaults.max_length = 1;
          c->defaults.max_new_tokens = 7;
        }).max_new_tokens == 7);
  CHECK(Accepted([](Case* c) { c->defaults.max_new_tokens = 100000; }).max_new_tokens == 4096);
  const DecodingOptions o = Accepted([](Case* c) {
    c->defaults.min_length = 10;
    c->request.decoder_prefix = {3, 4};
  });
  CHECK(o.min_new_tokens == 7);
  CHECK(Accepted([](Case* c) {
          c->defaults.min_length = 10;
          c->defaults.min_new_tokens = 2;
        }).min_new_tokens == 2);
  CHECK(Accepted([](Case* c) {
          c->defaults.min_length = 10;
          c->request.max_new_tokens = 4;
        }).min_new_tokens == 4);
}

TEST_CASE("options: a causal model's prompt and new tokens fit its positions") {
  const auto prompt = [](size_t length) {
    return [length](Case* c) {
      c->config = Gpt2Config();
      c->input.assign(length, 5);
    };
  };
  DecodingOptions o = Accepted(prompt(60));
  CHECK(o.prompt.size() == 60);
  CHECK(o.max_new_tokens == 4);  // the default of 256 is clamped
  o = Accepted([&](Case* c) {
    prompt(30)(c);
    c->defaults.max_length = 40;  // includes the prompt
  });
  CHECK(o.max_new_tokens == 10);
  Refused("max_length of generation_config.json", [&](Case* c) {
    prompt(40)(c);
    c->defaults.max_length = 40;
  });
  o = Accepted([&](Case* c) {
    prompt(60)(c);
    c->request.max_new_tokens = 4;
  });
  CHECK(o.max_new_tokens == 4);
  Refused("max_new_tokens", [&](Case* c) {
    prompt(60)(c);
    c->request.max_new_tokens = 5;
  });
  Refused("input", prompt(64));
  Refused("input", prompt(0));
  Refused("input", [&](Case* c) {
    prompt(3)(c);
    c->input = {5, 100};
  });
}

TEST_CASE("options: a request must set what the model does not define") {
  Refused("decoder_start_token_id", [](Case* c) { c->config.decoder_start_id = -1; });
  CHECK(Accepted([](Case* c) {
          c->config.decoder_start_id = -1;
          c->request.decoder_start_token_id = 4;
        }).prompt == std::vector<int32_t>{4});
  CHECK(Accepted([](Case* c) {
          c->config.decoder_start_id = -1;
          c->config.bos_id = 6;
        }).prompt == std::vector<int32_t>{6});
  CHECK(Accepted([](Case* c) { c->request.ignore_eos = true; }).eos_token_ids.empty());
  Refused("input", [](Case* c) { c->input.assign(4097, 5); });
}

TEST_CASE("options: a seed is drawn when none is given, and kept when one is") {
  const auto sample = [](Case* c) { c->request.do_sample = true; };
  CHECK(Accepted(sample).seed != Accepted(sample).seed);
  CHECK(Accepted([&](Case* c) {
          sample(c);
          c->request.seed = 18446744073709551615u;
        }).seed == 18446744073709551615u);
}

TEST_CASE("CheckDecoding refuses bad options that ResolveDecoding did not produce") {
  const auto refused = [](const std::function<void(DecodingOptions*)>& change) {
    DecodingOptions options = Accepted([](Case*) {});
    change(&options);
    CHECK_FALSE(CheckDecoding(options, 100).ok());
  };
  refused([](DecodingOptions* o) { o->max_new_tokens = 0; });
  refused([](DecodingOptions* o) { o->min_new_tokens = 257; });
  refused([](DecodingOptions* o) { o->num_beams = 33; });
  refused([](DecodingOptions* o) { o->num_return_sequences = 2; });
  refused([](DecodingOptions* o) { o->length_penalty = std::nan(""); });
  refused([](DecodingOptions* o) { o->patience = 1e9; });
  refused([](DecodingOptions* o) { o->warp.temperature = 0.0f; });
  refused([](DecodingOptions* o) { o->warp.top_k = -1; });
  refused([](DecodingOptions* o) { o->top_logprobs = 21; });
  refused([](DecodingOptions* o) { o->no_repeat_ngram_size = -1; });
  refused([](DecodingOptions* o) { o->repetition_penalty = 0.0f; });
  refused([](DecodingOptions* o) { o->prompt.clear(); });
  refused([](DecodingOptions* o) { o->prompt = {100}; });
  refused([](DecodingOptions* o) { o->eos_token_ids = {-1}; });
  refused([](DecodingOptions* o) { o->suppress_tokens = {100}; });
  refused([](DecodingOptions* o) { o->forced_bos_token_id = 100; });
  refused([](DecodingOptions* o) { o->bad_words_ids = {{}}; });
  refused([](DecodingOptions* o) { o->stop = {""}; });
}

}  // namespace
}  // namespace quintet
