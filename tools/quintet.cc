// The quintet binary. Subcommands live in files of their own; this one only lists them.
#include "tools/command_line.h"

int main(int argc, char** argv) {
  quintet::CommandLine line;
  quintet::AddCompletionCommand(line);
  return line.Run(argc, argv);
}
