# CPack runs this script. It installs /usr/share/doc/PACKAGE as Debian's policy asks: the copyright,
# the project's changelog (as changelog.gz) and the changelog of the Debian package (as
# changelog.Debian.gz). The caller sets quintet_doc (the package's name), quintet_changelog (the
# Debian changelog) and quintet_source (the source tree).
execute_process(COMMAND mktemp -d OUTPUT_VARIABLE work OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
file(COPY "${quintet_source}/deploy/debian/copyright" "${quintet_changelog}" DESTINATION "${work}")
file(COPY_FILE "${quintet_source}/CHANGELOG.md" "${work}/changelog")
execute_process(COMMAND gzip -9n "${work}/changelog" "${work}/changelog.Debian"
                COMMAND_ERROR_IS_FATAL ANY)
foreach(name copyright changelog.gz changelog.Debian.gz)
  file(INSTALL "${work}/${name}" DESTINATION "${CMAKE_INSTALL_PREFIX}/share/doc/${quintet_doc}"
       TYPE FILE)
endforeach()
file(REMOVE_RECURSE "${work}")
