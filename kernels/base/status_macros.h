// Macros that propagate errors: on failure they return the error's status from the enclosing
// function, which must return absl::Status or absl::StatusOr<T> for any T. Each evaluates its
// expression exactly once. Code that handles an error or adds context to it does not use them.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates `expression`, an absl::Status. Returns it if it is not OK. The macro expands to a
// single statement and may stand under an if without braces.
#define QT_RETURN_IF_ERROR(expression)                                            \
  do {                                                                            \
    if (absl::Status qt_status = (expression); !qt_status.ok()) return qt_status; \
  } while (0)

// Evaluates `expression`, an absl::StatusOr<T>. Returns its status if it is not OK; otherwise moves
// the value into `target`, which is a declaration or an assignable expression:
//
//   QT_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(directory));
//   QT_ASSIGN_OR_RETURN(block_, stream_->Allocate(bytes));
//
// On failure `target` is not evaluated and keeps its value. T may be move-only. A declared type
// with a comma, such as std::pair<A, B>, needs `auto` or an alias. The macro expands to several
// statements; under an if without braces it does not compile.
#define QT_ASSIGN_OR_RETURN(target, expression) \
  QT_ASSIGN_OR_RETURN_NAMED(QT_ASSIGN_JOIN(qt_result_, __LINE__), target, expression)

// Implementation of QT_ASSIGN_OR_RETURN. The name of the local StatusOr contains the line number,
// so that the macro can be used more than once in a scope.
#define QT_ASSIGN_JOIN2(a, b) a##b
#define QT_ASSIGN_JOIN(a, b) QT_ASSIGN_JOIN2(a, b)
#define QT_ASSIGN_OR_RETURN_NAMED(result, target, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) return std::move(result).status();        \
  target = *std::move(result)
