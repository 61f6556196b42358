// The quintet binary. Subcommands live in files of their own; this one only lists them.
#include "tools/command_line.h"

int main(int argc, char** argv) {
  quintet::CommandLine line;
  quintet::AddGenerateCommand(line);
  quintet::AddEncodeCommand(line);
  quintet::AddScoreCommand(line);
  quintet::AddClassifyCommand(line);
  quintet::AddConvertCommand(line);
  quintet::AddInspectCommand(line);
  quintet::AddServeCommand(line);
  quintet::AddBenchCommand(line);
  quintet::AddBenchServeCommand(line);
  quintet::AddBenchEngineCommand(line);
  quintet::AddCompletionCommand(line);
  return line.Run(argc, argv);
}
