from scripts.document_schemas import *
