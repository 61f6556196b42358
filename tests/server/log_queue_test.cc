#include "server/log_queue.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "spdlog/logger.h"
#include "tests/catch.h"

namespace quintet {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    read_end = ends[0], write_end = ends[1];
  }
  ~Pipe() {
    close(read_end);
    close(write_end);
  }
  // Writes to the pipe until it is full. Returns the number of bytes written.
  int64_t Fill() const {
    const int flags = fcntl(write_end, F_GETFL);
    fcntl(write_end, F_SETFL, flags | O_NONBLOCK);
    int64_t bytes = 0;
    for (size_t size : {size_t{4096}, size_t{1}}) {
      const std::string some(size, '#');
      for (ssize_t n; (n = write(write_end, some.data(), size)) > 0;) bytes += n;
    }
    fcntl(write_end, F_SETFL, flags);
    return bytes;
  }
  std::string Read(int64_t bytes) const {
    std::string text(static_cast<size_t>(bytes), 0);
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = read(read_end, text.data() + done, text.size() - done);
      REQUIRE(n > 0);
      done += static_cast<size_t>(n);
    }
    return text;
  }
  std::string ReadLine() const {
    std::string line;
    for (char c = 0; read(read_end, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  int read_end, write_end;
};

// A logger whose sink is a LogQueue.
struct QueuedLog {
  explicit QueuedLog(int fd, int64_t max_bytes = 1 << 20)
      : queue(std::make_shared<LogQueue>(LogQueue::Options{
            .fd = fd, .max_bytes = max_bytes, .flush_timeout = std::chrono::milliseconds(20)})),
        logger("test", queue) {
    queue->set_pattern("%v");
  }
  std::shared_ptr<LogQueue> queue;
  spdlog::logger logger;
};

TEST_CASE("Log lines are written completely and in order") {
  const Pipe pipe;
  QueuedLog log(pipe.write_end);
  for (int i = 0; i < 1000; ++i) log.logger.info("line {}", i);
  for (int i = 0; i < 1000; ++i) REQUIRE(pipe.ReadLine() == "line " + std::to_string(i));
  CHECK(log.queue->dropped_lines() == 0);
}

TEST_CASE("A flush returns when the lines are written") {
  const Pipe pipe;
  const auto queue = std::make_shared<LogQueue>(
      LogQueue::Options{.fd = pipe.write_end, .flush_timeout = std::chrono::minutes(10)});
  queue->Write("one\n");
  queue->flush();
  fcntl(pipe.read_end, F_SETFL, O_NONBLOCK);
  CHECK(pipe.ReadLine() == "one");
}

TEST_CASE("A pipe that nobody reads blocks no thread, and lost lines are reported later") {
  const Pipe pipe;
  const int64_t filled = pipe.Fill();
  QueuedLog log(pipe.write_end, /*max_bytes=*/10'000);
  constexpr int kLines = 5000;  // 20 bytes each: ten times the size of the queue
  for (int i = 0; i < kLines; ++i) log.logger.info("{:019}", i);
  log.logger.flush();
  const int64_t dropped = log.queue->dropped_lines();
  CHECK(dropped >= kLines - 10'000 / 20 - 1);  // the writing thread holds one line

  CHECK(pipe.Read(filled) == std::string(static_cast<size_t>(filled), '#'));
  const std::string note =
      std::to_string(dropped) + " lines of the log were lost here: it was blocked or full";
  int64_t arrived = 0;
  bool said = false;
  while (arrived < kLines - dropped || !said) {
    const std::string line = pipe.ReadLine();
    if (line == note) {
      said = true;
    } else {
      REQUIRE(line.size() == 19);
      REQUIRE(std::stoll(line) == arrived);  // the first lines are not lost
      ++arrived;
    }
  }
  log.logger.info("goes on");
  CHECK(pipe.ReadLine() == "goes on");
  CHECK(log.queue->dropped_lines() == dropped);
}

TEST_CASE("The destructor waits for a blocked pipe only for a bounded time") {
  const Pipe pipe;
  const int64_t filled = pipe.Fill();
  {
    QueuedLog log(pipe.write_end);
    log.logger.info("lost");
  }
  CHECK(pipe.Read(filled) == std::string(static_cast<size_t>(filled), '#'));
}

TEST_CASE("Lines that cannot be written to a full disk or a closed pipe are counted") {
  const int full = open("/dev/full", O_WRONLY);
  REQUIRE(full >= 0);
  int closed[2];
  REQUIRE(pipe(closed) == 0);
  close(closed[0]);
  for (const int fd : {full, closed[1]}) {
    QueuedLog log(fd);
    for (int i = 0; i < 100; ++i) log.logger.info("line");
    while (log.queue->dropped_lines() < 100) log.logger.flush();
    CHECK(log.queue->dropped_lines() == 100);
  }
  close(full);
  close(closed[1]);
}

TEST_CASE("A line larger than the queue is dropped without affecting others") {
  const Pipe pipe;
  QueuedLog log(pipe.write_end, /*max_bytes=*/100);
  log.logger.info(std::string(101, 'x'));
  log.logger.info("next");
  CHECK(pipe.ReadLine() == "next");
  CHECK(pipe.ReadLine() == "1 lines of the log were lost here: it was blocked or full");
  CHECK(log.queue->dropped_lines() == 1);
}

TEST_CASE("A descriptor that another process made non-blocking gets every line") {
  const Pipe pipe;
  const int64_t filled = pipe.Fill();
  fcntl(pipe.write_end, F_SETFL, O_NONBLOCK);
  QueuedLog log(pipe.write_end);
  log.logger.info("late");
  log.logger.flush();
  pipe.Read(filled);
  CHECK(pipe.ReadLine() == "late");
  CHECK(log.queue->dropped_lines() == 0);
}

}  // namespace
}  // namespace quintet
