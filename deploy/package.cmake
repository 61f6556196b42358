# Defines what `cmake --install` installs, and which Debian packages CPack makes: `quintet`, and
# `quintet-model-g2p` with the demonstration model. tools/package.sh runs CPack. `cmake --install`
# installs the model only with `--component model`.
install(TARGETS quintet RUNTIME DESTINATION bin COMPONENT quintet)
install(CODE "set(quintet_binary \"$<TARGET_FILE:quintet>\")
set(quintet_source \"${CMAKE_SOURCE_DIR}\")" COMPONENT quintet)
install(SCRIPT ${CMAKE_SOURCE_DIR}/deploy/install.cmake COMPONENT quintet)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/deploy/models/g2p DESTINATION share/quintet/models
        COMPONENT model EXCLUDE_FROM_ALL)

# The packages depend on the libraries of the Debian suite that they were built on; the packages'
# version therefore contains the suite's number.
set(debian_release 1)
if(EXISTS /etc/os-release)
  file(STRINGS /etc/os-release debian_suite REGEX "^VERSION_ID=")
  string(REGEX REPLACE "VERSION_ID=\"?([^\"]*)\"?" "\\1" debian_suite "${debian_suite}")
  if(debian_suite)
    set(debian_release "1~deb${debian_suite}")
  endif()
endif()
set(CPACK_PACKAGE_CONTACT "Quintet maintainers <maintainers@quintet.invalid>" CACHE STRING
    "Maintainer of the Debian packages")
string(TIMESTAMP debian_date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # or SOURCE_DATE_EPOCH
file(WRITE ${CMAKE_BINARY_DIR}/package/changelog.Debian
     "quintet (${PROJECT_VERSION}-${debian_release}) unstable; urgency=medium\n\n"
     "  * Built from the sources of ${PROJECT_VERSION}; changelog.gz lists the changes.\n\n"
     " -- ${CPACK_PACKAGE_CONTACT}  ${debian_date}\n")
# Adds /usr/share/doc/PACKAGE to each of the Debian packages. `cmake --install` does not install it.
foreach(component quintet model)
  set(name quintet)
  if(component STREQUAL model)
    set(name quintet-model-g2p)
  endif()
  install(CODE "set(quintet_doc \"${name}\")
set(quintet_changelog \"${CMAKE_BINARY_DIR}/package/changelog.Debian\")
set(quintet_source \"${CMAKE_SOURCE_DIR}\")" COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(SCRIPT ${CMAKE_SOURCE_DIR}/deploy/debian/install_doc.cmake COMPONENT ${component}
          EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME quintet)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_SET_DESTDIR ON)  # /etc is not below the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL quintet model)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${debian_release})
set(CPACK_DEBIAN_PACKAGE_SOURCE quintet)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_QUINTET_PACKAGE_NAME quintet)
set(CPACK_COMPONENT_QUINTET_DESCRIPTION
    "inference engine and server for T5-family models
Quintet runs encoder-decoder models of the T5 family, and GPT-2, from Hugging
Face checkpoints. It generates, encodes, scores and classifies files of lines,
or serves models over gRPC with continuous batching and Prometheus metrics.

The systemd unit quintet.service is neither enabled nor started: first set the
models in /etc/quintet/serve.toml.")
set(CPACK_DEBIAN_QUINTET_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_QUINTET_PACKAGE_SUGGESTS quintet-model-g2p)
set(debian_scripts conffiles postinst prerm postrm)
list(TRANSFORM debian_scripts PREPEND ${CMAKE_SOURCE_DIR}/deploy/debian/)
set(CPACK_DEBIAN_QUINTET_PACKAGE_CONTROL_EXTRA ${debian_scripts})

set(CPACK_DEBIAN_MODEL_PACKAGE_NAME quintet-model-g2p)
set(CPACK_COMPONENT_MODEL_DESCRIPTION
    "grapheme-to-phoneme model for Quintet
A T5 of 6.3 million parameters that spells English words in ARPAbet phonemes,
trained on the CMU Pronouncing Dictionary: the demonstration model of Quintet,
in /usr/share/quintet/models/g2p.")
set(CPACK_DEBIAN_MODEL_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_MODEL_PACKAGE_ENHANCES quintet)
include(CPack)
