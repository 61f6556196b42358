# `cmake --install` runs this script with quintet_binary and quintet_source set. It installs the
# manual pages and shell completions, which the binary itself generates, and the systemd unit with
# its configuration file. In both the unit and the configuration file it replaces the folders /usr
# and /etc by those of the install prefix.
function(install_file folder name)
  file(INSTALL "${work}/${name}" DESTINATION "${folder}" TYPE FILE)
endfunction()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(prefix "${CMAKE_INSTALL_PREFIX}")
# With prefix /usr, which Debian packages use, configuration goes to /etc and the zsh completions go
# to vendor-completions, zsh's folder for packages. With any other prefix, configuration goes to
# PREFIX/etc and the completions go to site-functions, the folder for what the administrator
# installs.
if(prefix STREQUAL "/usr")
  set(etc /etc)
  set(zsh vendor-completions)
else()
  set(etc "${prefix}/etc")
  set(zsh site-functions)
endif()

execute_process(COMMAND mktemp -d OUTPUT_VARIABLE work OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)

run("${quintet_binary}" man "${work}")
file(GLOB pages "${work}/*.1")
run(gzip -9n ${pages})
file(GLOB pages RELATIVE "${work}" "${work}/*.1.gz")
foreach(page ${pages})
  install_file("${prefix}/share/man/man1" ${page})
endforeach()

run("${quintet_binary}" completion bash OUTPUT_FILE "${work}/quintet")
run("${quintet_binary}" completion zsh OUTPUT_FILE "${work}/_quintet")
run("${quintet_binary}" completion fish OUTPUT_FILE "${work}/quintet.fish")
install_file("${prefix}/share/bash-completion/completions" quintet)
install_file("${prefix}/share/zsh/${zsh}" _quintet)
install_file("${prefix}/share/fish/vendor_completions.d" quintet.fish)

foreach(name quintet.service serve.toml)
  file(READ "${quintet_source}/deploy/systemd/${name}" text)
  string(REPLACE "/usr/" "${prefix}/" text "${text}")
  string(REPLACE "/etc/" "${etc}/" text "${text}")
  file(WRITE "${work}/${name}" "${text}")
endforeach()
install_file("${prefix}/lib/systemd/system" quintet.service)
install_file("${etc}/quintet" serve.toml)

file(REMOVE_RECURSE "${work}")
